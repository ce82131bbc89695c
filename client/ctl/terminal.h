/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_TERMINAL_H
#define CLIENT_CTL_TERMINAL_H
/* Standard output, as far as it is a terminal. */
#include <stdbool.h>
#include <stddef.h>

#include "client/ctl/command_line.h"

#define TERMINAL_COLUMNS 80u /* where nothing tells the width of a terminal */

bool terminal_has_color(enum color_when when);

/* The columns of a line. Where no terminal tells its width, $COLUMNS does. A file or a pipe without it gets
 * whole lines: WIDTH_ANY. */
size_t terminal_width(void);

#endif
