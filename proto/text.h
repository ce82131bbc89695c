/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_TEXT_H
#define PROTO_TEXT_H
/*
 * Text on the wire: printable UTF-8. Every text that is sent is made so, and every text that arrives is
 * checked. Pure, and thread-safe.
 */
#include <stdbool.h>
#include <stddef.h>

/* Length of a text without a last character of which some bytes were cut off. */
size_t text_whole_characters(const char *text, size_t length);

/* Whether size bytes are printable characters, none of them cut. */
bool text_is_printable(const char *text, size_t size);

/* Whether a text that is not empty ends within its array of size bytes, and NULs fill the rest. */
bool text_is_filled_up(const char *text, size_t size);

#endif
