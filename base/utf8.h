/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H
/*
 * UTF-8, as Unicode 15, table 3-7, has it: overlong forms, surrogates and numbers above U+10FFFF are not
 * well-formed. Pure, and thread-safe.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the character at text, of which size bytes may be read. Returns its length in bytes, 1…4, or 0
 * where the bytes are not well-formed; *ret_character is untouched then. */
size_t utf8_decode(const char *text, size_t size, uint32_t *ret_character);

/* Whether a terminal does something with a character in place of showing it: controls (also DEL and C1),
 * marks, overrides and isolates of the direction of writing, separators of lines, joiners without width. */
bool utf8_steers(uint32_t character);

/* Replaces each byte of a text that is not well-formed by '?'. */
void utf8_make_valid(char *text);

/* Replaces in a text of size bytes also each byte of a character that steers: the text can be shown. */
void utf8_make_plain(char *text, size_t size);

#endif
