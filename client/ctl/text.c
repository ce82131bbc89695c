/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/text.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

#include "base/cleanup.h"
#include "base/utf8.h"

/* Of an escape: \u202e. In some locales a character that becomes one has a single byte. */
#define ESCAPE_SIZE 6u

/* Writes a character as an escape: \x1b, \u202e. Returns how long that is. */
static size_t write_escape(char *to, uint32_t character) {
    return (size_t)sprintf(to, character <= 0xff ? "\\x%02" PRIx32 : "\\u%04" PRIx32, character);
}

char *text_printable(const char *text, size_t *ret_width) {
    size_t left = strlen(text), length = 0, width = 0;
    mbstate_t state = {0};

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

/* The bytes of the character that a printable text begins with, and the columns that it takes. */
static size_t character_at(const char *text, size_t *ret_columns) {
    mbstate_t state = {0};
    wchar_t character;
    size_t bytes = mbrtowc(&character, text, MB_CUR_MAX, &state);

    if (bytes == 0 || bytes > MB_LEN_MAX) { /* text_printable() leaves none */
        *ret_columns = 1;
        return 1;
    }
    int columns = wcwidth(character);
    *ret_columns = columns > 0 ? (size_t)columns : 0;
    return bytes;
}

size_t text_line(const char *text, size_t columns, size_t *ret_width) {
    size_t width = 0, length = 0, line_length = 0, line_width = 0, character_columns;

    while (text[length] != '\0') {
        bool is_break =
            text[length] == ' ' && length > 0 && text[length - 1] != ' ' &&
            !(isdigit((unsigned char)text[length - 1]) && isalpha((unsigned char)text[length + 1]));
        if (is_break && (width <= columns || line_length == 0)) {
            line_length = length;
            line_width = width;
        }
        if (width > columns && line_length > 0)
            break;
        length += character_at(text + length, &character_columns);
        width += character_columns;
    }
    if (text[length] == '\0' && (width <= columns || line_length == 0)) {
        line_length = length;
        line_width = width;
    }
    if (ret_width != NULL)
        *ret_width = line_width;
    return line_length;
}

const char *text_next_line(const char *text, size_t length) {
    return text + length + strspn(text + length, " ");
}

void text_wrap(FILE *stream, const char *text, size_t indent, size_t columns) {
    for (bool is_first = true; is_first || *text != '\0'; is_first = false) {
        size_t length = text_line(text, columns > indent ? columns - indent : 1, NULL);
        fprintf(stream, "%*s%.*s\n", is_first ? 0 : (int)indent, "", (int)length, text);
        text = text_next_line(text, length);
    }
}

char *text_cut(const char *text, size_t columns, size_t *ret_width) {
    static const char dots[] = "...", ellipsis[] = "\u2026";
    size_t ellipsis_columns, length = 0, width = 0, character_columns;

    const char *end = character_at(ellipsis, &ellipsis_columns) == sizeof ellipsis - 1 ? ellipsis : dots;
    size_t end_columns = end == dots ? sizeof dots - 1 : ellipsis_columns;
    while (text[length] != '\0') {
        size_t bytes = character_at(text + length, &character_columns);
        if (width + character_columns + end_columns > columns)
            break;
        length += bytes;
        width += character_columns;
    }
    *ret_width = width + end_columns;
    char *copy;
    return asprintf(&copy, "%.*s%s", (int)length, text, end) < 0 ? NULL : copy;
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
