/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_TEXT_H
#define CLIENT_CTL_TEXT_H
/*
 * Text from the daemon on its way to a terminal. A worker chooses its own process name, so what arrives may
 * hold escape sequences, or characters that turn the direction of writing: none of them may reach the
 * operator's terminal.
 */
#include <stddef.h>
#include <stdio.h>

/* Copies text with every character that the terminal would not show as itself (controls, characters without
 * width, what the locale cannot write) replaced by '?'. Returns the copy, owned by the caller, or NULL when
 * memory is short. ret_width, unless NULL, gets how many columns it takes. */
char *text_printable(const char *text, size_t *ret_width);

/* Writes a line of JSON and a newline. The same characters, which JSON allows inside strings only, leave as
 * \u escapes: to a program the line means what it meant. The line is UTF-8 without bytes below 0x20. */
void text_write_json(FILE *file, const char *line, size_t length);

#endif
