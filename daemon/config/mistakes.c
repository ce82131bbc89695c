/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/mistakes.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "daemon/loop/log.h"

void config_clean(char *text) {
    size_t size = strlen(text), length;

    for (; size > 0; text += length, size -= length) {
        uint32_t character = 0;
        length = utf8_decode(text, size, &character);
        if (length != 0 && character >= ' ' && (character < 0x7f || character > 0x9f))
            continue;
        length = length != 0 ? length : 1;
        memset(text, '?', length);
    }
}

int config_mistake(const struct config_place *place, const char *format, ...) {
    struct config_mistakes *mistakes = place->mistakes;
    char text[CONFIG_MISTAKE_SIZE];
    int used = 0;
    va_list arguments;

    if (place->option != NULL)
        used = snprintf(text, sizeof text, "--%s: ", place->option);
    else if (place->path != NULL && place->line > 0)
        used = snprintf(text, sizeof text, "%.255s:%d: ", place->path, place->line);
    else if (place->path != NULL)
        used = snprintf(text, sizeof text, "%.255s: ", place->path);
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    config_clean(text);

    /* Behind those of the same line and of earlier ones; without room the last one goes. */
    unsigned told = config_mistakes_told(mistakes), position = told;
    while (position > 0 && place->line > 0 && mistakes->first[position - 1].line > place->line)
        position--;
    mistakes->count++;
    if (position == CONFIG_MISTAKES_MAX)
        return -EINVAL;
    unsigned behind = (told < CONFIG_MISTAKES_MAX ? told : CONFIG_MISTAKES_MAX - 1) - position;
    memmove(&mistakes->first[position + 1], &mistakes->first[position], behind * sizeof *mistakes->first);
    mistakes->first[position].line = place->line;
    memcpy(mistakes->first[position].text, text, sizeof text);
    return -EINVAL;
}

unsigned config_mistakes_told(const struct config_mistakes *mistakes) {
    return mistakes->count < CONFIG_MISTAKES_MAX ? mistakes->count : CONFIG_MISTAKES_MAX;
}

void config_mistakes_log(const struct config_mistakes *mistakes) {
    unsigned told = config_mistakes_told(mistakes);

    for (unsigned i = 0; i < told; i++)
        log_error("%s", mistakes->first[i].text);
    if (mistakes->count > told)
        log_error("%u more mistakes in the configuration are not shown", mistakes->count - told);
}
