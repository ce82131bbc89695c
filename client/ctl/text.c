/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <wctype.h>

#include "base/cleanup.h"

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

/* The Unicode character at a place in valid UTF-8, and how many bytes it has. */
static unsigned utf8_character(const unsigned char *text, size_t *ret_length) {
    size_t length = text[0] < 0x80 ? 1 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
    unsigned character = length == 1 ? text[0] : text[0] & (0x7fu >> length);

    for (size_t i = 1; i < length; i++)
        character = character << 6 | (text[i] & 0x3f);
    *ret_length = length;
    return character;
}

static bool moves_the_terminal(unsigned character) {
    return (character >= 0x7f && character <= 0x9f) /* DEL and the C1 controls */
           ||
           (character >= 0x200b && character <= 0x200f) /* no width; left-to-right and right-to-left marks */
           || (character >= 0x2028 && character <= 0x202e) /* line separators, embeddings and overrides */
           || (character >= 0x2060 && character <= 0x206f) /* joiners and isolates */
           || character == 0xfeff;
}

void text_write_json(FILE *file, const char *line, size_t length) {
    for (size_t i = 0, bytes; i < length; i += bytes) {
        unsigned character = utf8_character((const unsigned char *)line + i, &bytes);
        if (moves_the_terminal(character))
            fprintf(file, "\\u%04x", character);
        else
            fwrite(line + i, 1, bytes, file);
    }
    fputc('\n', file);
}
