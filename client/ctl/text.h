/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_TEXT_H
#define CLIENT_CTL_TEXT_H
/*
 * Text from the daemon on its way to a terminal. A worker chooses its own process name, so what arrives may
 * hold escape sequences, or characters that turn the direction of writing: none of them may reach the
 * operator's terminal.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* Copies text so that a terminal shows it: characters that would steer the terminal (utf8_steers()) become
 * escapes such as \x1b and \u202e, what the locale cannot write becomes '?', and letters stay. Returns the
 * copy, owned by the caller, or NULL when memory is short. ret_width, unless NULL, gets how many columns it
 * takes. */
char *text_printable(const char *text, size_t *ret_width);

/* As text_printable(), of a text that is formatted first. */
char *text_format(const char *format, va_list arguments, size_t *ret_width)
    __attribute__((format(printf, 1, 0)));

/* How many bytes of a printable text stand on its first line of so many columns. A line ends before a blank,
 * but not before the blank between a number and its unit. A word that is longer than a line is whole, on a
 * line that is too long. The next line begins behind the blanks. *ret_width, unless NULL, gets the columns.
 */
size_t text_line(const char *text, size_t columns, size_t *ret_width);

/* The next line's text behind the length that text_line() returned. */
const char *text_next_line(const char *text, size_t length);

/* Prints a printable text as lines of so many columns. The first begins at the column where the caller left
 * off, column "indent"; the others are indented as far. The last one ends with a newline. */
void text_wrap(FILE *stream, const char *text, size_t indent, size_t columns);

/* Copies a printable text, which is cut off so that it takes at most so many columns, at least 3, with an
 * ellipsis at its end. Returns the copy, owned by the caller, or NULL when memory is short. */
char *text_cut(const char *text, size_t columns, size_t *ret_width);

/* Tells the user on standard error what went wrong; the text may hold what the daemon sent. Returns code, for
 * the program to exit with. */
int complain(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes a line of JSON and a newline on standard output. Characters that would steer a terminal, which JSON
 * allows inside strings only, leave as \u escapes: to a program the line means what it meant. The line is
 * UTF-8 without bytes below 0x20. */
void text_write_json(const char *line, size_t length);

#endif
