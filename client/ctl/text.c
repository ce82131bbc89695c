/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/text.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

#include "base/cleanup.h"
#include "base/utf8.h"

/* Of an escape for each byte: \x1b has one byte, and the six characters of \u202e stand for three. */
#define ESCAPE_SIZE 4u

/* Writes a character as an escape: \x1b, \u202e. Returns how long that is. */
static size_t write_escape(char *to, uint32_t character) {
    return (size_t)sprintf(to, character <= 0xff ? "\\x%02" PRIx32 : "\\u%04" PRIx32, character);
}

char *text_printable(const char *text, size_t *ret_width) {
    size_t left = strlen(text), length = 0, width = 0;
    mbstate_t state = {0};

    /* A byte becomes an escape of four characters, or it is a part of a character. */
    char *copy = malloc(ESCAPE_SIZE * left + 1);
    if (copy == NULL)
        return NULL;
    while (left > 0) {
        wchar_t character;
        size_t bytes = mbrtowc(&character, text, left, &state);
        int columns = -1;
        bool is_character = bytes != 0 && bytes != (size_t)-1 && bytes != (size_t)-2;
        if (!is_character) { /* in this locale */
            memset(&state, 0, sizeof state);
            bytes = 1;
        } else if (iswprint((wint_t)character))
            columns = wcwidth(character);
        if (is_character && utf8_steers((uint32_t)character)) {
            size_t written = write_escape(copy + length, (uint32_t)character);
            length += written;
            width += written;
        } else if (columns >= 0) {
            memcpy(copy + length, text, bytes);
            length += bytes;
            width += (size_t)columns;
        } else {
            copy[length++] = '?';
            width++;
        }
        text += bytes;
        left -= bytes;
    }
    copy[length] = '\0';
    if (ret_width != NULL)
        *ret_width = width;
    return copy;
}

char *text_format(const char *format, va_list arguments, size_t *ret_width) {
    char *raw;

    if (vasprintf(&raw, format, arguments) < 0)
        return NULL;
    char *printable = text_printable(raw, ret_width);
    free(raw);
    return printable;
}

int complain(int code, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    _cleanup_(freep) char *text = text_format(format, arguments, NULL);
    va_end(arguments);
    fprintf(stderr, "gpupoolctl: %s\n", text != NULL ? text : "out of memory");
    return code;
}

void text_write_json(const char *line, size_t length) {
    for (size_t i = 0, bytes; i < length; i += bytes) {
        uint32_t character = 0;
        bytes = utf8_decode(line + i, length - i, &character);
        if (utf8_steers(character))
            printf("\\u%04" PRIx32, character);
        else
            fwrite(line + i, 1, bytes, stdout);
    }
    putchar('\n');
}
