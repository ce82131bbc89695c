/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"

#include <string.h>

size_t utf8_decode(const char *text, size_t size, uint32_t *ret_character) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* by length: less is an overlong form */
    const uint8_t *bytes = (const uint8_t *)text;

    if (size == 0)
        return 0;
    size_t length = bytes[0] < 0x80             ? 1
                    : (bytes[0] & 0xe0) == 0xc0 ? 2
                    : (bytes[0] & 0xf0) == 0xe0 ? 3
                    : (bytes[0] & 0xf8) == 0xf0 ? 4
                                                : 0;
    if (length == 0 || length > size)
        return 0;
    uint32_t character = length == 1 ? bytes[0] : bytes[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xc0) != 0x80)
            return 0;
        character = character << 6 | (bytes[i] & 0x3f);
    }
    if (character < least[length] || character > 0x10ffff || (character >= 0xd800 && character <= 0xdfff))
        return 0;
    *ret_character = character;
    return length;
}

bool utf8_steers(uint32_t character) {
    return character < 0x20 || (character >= 0x7f && character <= 0x9f) || character == 0x061c ||
           (character >= 0x200b && character <= 0x200f) || (character >= 0x2028 && character <= 0x202e) ||
           (character >= 0x2060 && character <= 0x206f) || character == 0xfeff;
}

/* Replaces each byte that is not well-formed by '?', and, if asked to, each byte of a character that steers.
 */
static void replace(char *text, size_t size, bool also_steering) {
    while (size > 0) {
        uint32_t character;
        size_t length = utf8_decode(text, size, &character);
        if (length == 0 || (also_steering && utf8_steers(character))) {
            length = length == 0 ? 1 : length;
            memset(text, '?', length);
        }
        text += length;
        size -= length;
    }
}

void utf8_make_valid(char *text) {
    replace(text, strlen(text), false);
}

void utf8_make_plain(char *text, size_t size) {
    replace(text, size, true);
}
