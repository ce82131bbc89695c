/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/report_html.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

void html_text(FILE *stream, const char *text) {
    _cleanup_(freep) char *plain = strdup(text);

    if (plain == NULL)
        return;
    utf8_make_valid(plain);
    utf8_make_plain(plain, strlen(plain));
    for (const char *byte = plain; *byte != '\0'; byte++) {
        switch (*byte) {
        case '&':
            fputs("&amp;", stream);
            break;
        case '<':
            fputs("&lt;", stream);
            break;
        case '>':
            fputs("&gt;", stream);
            break;
        case '"':
            fputs("&quot;", stream);
            break;
        case '\'':
            fputs("&#39;", stream);
            break;
        default:
            putc(*byte, stream);
        }
    }
}

void html_format(FILE *stream, const char *format, ...) {
    va_list arguments;
    char *text;

    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    html_text(stream, text);
    free(text);
}
