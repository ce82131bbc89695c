/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/terminal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/units.h"
#include "client/ctl/table.h"

bool terminal_has_color(enum color_when when) {
    if (when != COLOR_AUTO)
        return when == COLOR_ALWAYS;
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0') &&
           (terminal == NULL || strcmp(terminal, "dumb") != 0);
}

size_t terminal_width(void) {
    const char *columns = getenv("COLUMNS");
    struct winsize size;
    uint64_t width;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    if (columns != NULL && units_parse_number(columns, UINT16_MAX, &width) == 0 && width > 0)
        return width;
    return isatty(STDOUT_FILENO) ? TERMINAL_COLUMNS : WIDTH_ANY;
}
