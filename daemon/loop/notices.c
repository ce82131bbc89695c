/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/notices.h"

#include <string.h>

void notices_add(struct notices *notices, const char *text) {
    for (unsigned i = 0; i < notices->count; i++)
        if (strcmp(notices->texts[i], text) == 0)
            return;
    if (notices->count < NOTICES_MAX)
        notices->texts[notices->count++] = text;
}
