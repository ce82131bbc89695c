/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_parse.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "proto/limits.h"

int config_complain(const struct config_setting *setting, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(setting->error, setting->error_size, format, arguments);
    va_end(arguments);
    return -EINVAL;
}

int config_parse_size(const char *text, struct config_size *ret_size) {
    struct config_size size = {.set = true};
    size_t length = strlen(text);

    if (length > 0 && text[length - 1] == '%') {
        char *end;
        errno = 0;
        unsigned long percent = strtoul(text, &end, 10);
        if (errno != 0 || end != text + length - 1 || end == text || *text == '-' || *text == '+' ||
            percent > 100)
            return -EINVAL;
        size.is_percent = true;
        size.value = percent;
    } else {
        int r = units_parse_bytes(text, &size.value);
        if (r < 0 || size.value > PROTO_SIZE_MAX)
            return -EINVAL;
    }
    *ret_size = size;
    return 0;
}
