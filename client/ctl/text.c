/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

#include "base/cleanup.h"
#include "base/utf8.h"

char *text_printable(const char *text, size_t *ret_width) {
    size_t left = strlen(text), length = 0, width = 0;
    mbstate_t state = {0};

    /* A character becomes itself or one byte: the copy is never longer. */
    char *copy = malloc(left + 1);
    if (copy == NULL)
        return NULL;
    while (left > 0) {
        wchar_t character;
        size_t bytes = mbrtowc(&character, text, left, &state);
        int columns = -1;
        if (bytes == 0 || bytes == (size_t)-1 || bytes == (size_t)-2) { /* not a character in this locale */
            memset(&state, 0, sizeof state);
            bytes = 1;
        } else if (iswprint((wint_t)character))
            columns = wcwidth(character);
        if (columns > 0) {
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

static bool moves_the_terminal(uint32_t character) {
    return (character >= 0x7f && character <= 0x9f) /* DEL and the C1 controls */
           ||
           (character >= 0x200b && character <= 0x200f) /* no width; left-to-right and right-to-left marks */
           || (character >= 0x2028 && character <= 0x202e) /* line separators, embeddings and overrides */
           || (character >= 0x2060 && character <= 0x206f) /* joiners and isolates */
           || character == 0xfeff;
}

void text_write_json(const char *line, size_t length) {
    for (size_t i = 0, bytes; i < length; i += bytes) {
        uint32_t character = 0;
        bytes = utf8_decode(line + i, length - i, &character);
        if (moves_the_terminal(character))
            printf("\\u%04x", character);
        else
            fwrite(line + i, 1, bytes, stdout);
    }
    putchar('\n');
}
