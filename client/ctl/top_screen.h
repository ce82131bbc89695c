/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_TOP_SCREEN_H
#define CLIENT_CTL_TOP_SCREEN_H
/*
 * A screen of "top", drawn line by line into any output: a terminal by curses, or plain text. It knows no
 * terminal.
 */
#include <stdbool.h>
#include <stdint.h>

struct top_sample;

enum top_style {
    TOP_PLAIN,
    TOP_HEADING, /* of a table */
    TOP_QUIET,
    TOP_USED, /* of a bar: in use */
    TOP_CACHED,
    TOP_HELD, /* of a bar: behind fences, in quarantine; of a line: worth a look */
    TOP_ALARM,
    TOP_KEY, /* of the last line */
};

enum top_column {
    TOP_PID,
    TOP_USER,
    TOP_USE,
    TOP_IDLE,
    TOP_RATE,
    TOP_WAITS,
    TOP_AGE,
    TOP_STATE,
    TOP_NAME,
    TOP_COLUMNS,
};

/* The part of a sample that is shown. */
struct top_choice {
    enum top_column sort;
    bool hidden[TOP_COLUMNS];
    uint64_t pool, pid; /* 0: all */
    uint64_t uid;       /* USER_NONE: all */
    const char *scope;  /* NULL: all; borrowed */
    char word[32];      /* that a process's name has; "": any */
    unsigned first;     /* process that is shown first */
    unsigned interval_ms;
    bool paused, helps;
};

/* The output. columns: of a line; rows: of the screen, 0: as many as there are. */
struct top_canvas {
    unsigned columns, rows;
    void (*text)(struct top_canvas *canvas, enum top_style style, const char *text);
    void (*line)(struct top_canvas *canvas); /* ends a line */
    unsigned used_columns, used_rows;        /* so far; begin with 0 */
};

/* Draws the screen. Changes choice->first where that lies behind the end. */
void top_screen_draw(struct top_canvas *canvas, const struct top_sample *sample, struct top_choice *choice);

#endif
