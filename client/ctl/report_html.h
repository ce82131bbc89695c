/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_REPORT_HTML_H
#define CLIENT_CTL_REPORT_HTML_H
/* Text for a page. Names of processes and scopes are their owners' choice: none may become markup,
 * in an element or in a quoted attribute, or turn the direction of writing. */
#include <stdio.h>

/* Prints a text, of which markup becomes references, and characters that steer, or that are no UTF-8, become
 * question marks. */
void html_text(FILE *stream, const char *text);

/* As html_text(), of a text that is formatted first. */
void html_format(FILE *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
