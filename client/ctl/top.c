/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/top.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/ctl/command_line.h"
#include "client/ctl/json.h"
#include "client/ctl/terminal.h"
#include "client/ctl/text.h"
#include "client/ctl/top_sample.h"
#include "client/ctl/top_screen.h"
#include "client/ctl/user.h"

#ifdef GPUPOOL_HAVE_CURSES
#include <curses.h>
#endif

#define SILENT_MAX      100u
#define INTERVAL_MIN_MS ((unsigned)(TOP_INTERVAL_MIN_NS / NS_PER_MS))
#define INTERVAL_MAX_MS ((unsigned)(TOP_INTERVAL_MAX_NS / NS_PER_MS))

static void choice_init(struct top_choice *choice, const struct options *options) {
    *choice = (struct top_choice){.sort = TOP_USE,
                                  .pool = options->pool,
                                  .pid = options->filter.pid,
                                  .uid = options->filter.uid,
                                  .scope = options->filter.scope,
                                  .interval_ms = (unsigned)(options->interval_ns / NS_PER_MS)};
}

/* --- plain text --- */

static void plain_text(struct top_canvas *canvas, enum top_style style, const char *text) {
    (void)canvas;
    (void)style;
    fputs(text, stdout);
}

static void plain_line(struct top_canvas *canvas) {
    (void)canvas;
    putchar('\n');
}

/* Prints screens without end, or one. */
static int run_plain(const struct options *options) {
    size_t width = terminal_width();
    struct top_canvas canvas = {.columns = width == WIDTH_ANY ? TERMINAL_COLUMNS : (unsigned)width,
                                .text = plain_text,
                                .line = plain_line};
    struct top_sample sample = {0};
    struct top_choice choice;
    int code;

    choice_init(&choice, options);
    for (;;) {
        top_sample_take(&sample, options);
        top_screen_draw(&canvas, &sample, &choice);
        code = finish_output(sample.error[0] != '\0' ? EXIT_UNREACHABLE : EXIT_SUCCESS);
        if (options->once || code == EXIT_REFUSED)
            break;
        putchar('\n');
        nanosleep(&(struct timespec){.tv_sec = choice.interval_ms / 1000,
                                     .tv_nsec = choice.interval_ms % 1000 * 1000000L},
                  NULL);
    }
    top_sample_deinit(&sample);
    return code;
}

#ifdef GPUPOOL_HAVE_CURSES
/* --- the terminal --- */

static void curses_text(struct top_canvas *canvas, enum top_style style, const char *text) {
    static const struct {
        attr_t attributes;
        short pair;
    } looks[] = {
        [TOP_PLAIN] = {A_NORMAL, 0}, [TOP_HEADING] = {A_BOLD, 0},  [TOP_QUIET] = {A_DIM, 0},
        [TOP_USED] = {A_NORMAL, 1},  [TOP_CACHED] = {A_NORMAL, 2}, [TOP_HELD] = {A_NORMAL, 3},
        [TOP_ALARM] = {A_BOLD, 4},   [TOP_KEY] = {A_REVERSE, 0},
    };
    (void)canvas;
    attr_set(looks[style].attributes, has_colors() ? looks[style].pair : 0, NULL);
    addstr(text);
    attr_set(A_NORMAL, 0, NULL);
}

static void curses_line(struct top_canvas *canvas) {
    clrtoeol();
    move((int)canvas->used_rows + 1, 0);
}

static void draw(const struct top_sample *sample, struct top_choice *choice) {
    struct top_canvas canvas = {
        .columns = (unsigned)COLS, .rows = (unsigned)LINES, .text = curses_text, .line = curses_line};

    erase();
    move(0, 0);
    top_screen_draw(&canvas, sample, choice);
    refresh();
}

/* Reads a word in the last line. */
static void read_word(struct top_choice *choice) {
    move(LINES - 1, 0);
    clrtoeol();
    addstr("name: ");
    echo();
    timeout(-1);
    if (getnstr(choice->word, (int)sizeof choice->word - 1) == ERR)
        choice->word[0] = '\0';
    noecho();
    choice->first = 0;
}

/* The pool behind the one that is shown. 0: all. */
static uint64_t next_pool(const struct top_sample *sample, uint64_t shown) {
    reply_each(pool, sample->reply->root,
               "pools") if (reply_count(pool, "id") > shown) return reply_count(pool, "id");
    return 0;
}

/* The user behind the one that is shown, by number. */
static uint64_t next_user(const struct top_sample *sample, uint64_t shown) {
    uint64_t next = USER_NONE;

    reply_each(session, sample->reply->root, "sessions") {
        uint64_t uid = reply_count(session, "uid");
        if ((shown == USER_NONE || uid > shown) && uid < next)
            next = uid;
    }
    return next;
}

static void sort_beside(struct top_choice *choice, int step) {
    for (unsigned i = 0; i < TOP_COLUMNS; i++) {
        choice->sort = (enum top_column)(((int)choice->sort + step + (int)TOP_COLUMNS) % (int)TOP_COLUMNS);
        if (!choice->hidden[choice->sort])
            return;
    }
}

static void scroll_by(struct top_choice *choice, int rows) {
    choice->first = (int)choice->first + rows > 0 ? choice->first + (unsigned)rows : 0;
}

/* Does what a key says. Returns false to quit. */
static bool take_key(int key, struct top_choice *choice, const struct top_sample *sample) {
    bool has_sample = sample->reply != NULL;

    choice->helps = key == KEY_F(1) || key == '?' || key == 'h' || (choice->helps && key == ERR);
    switch (key) {
    case 'q':
    case KEY_F(10):
    case 3: /* ^C, where the terminal does not send a signal */
        return false;
    case '<':
        sort_beside(choice, -1);
        break;
    case '>':
    case KEY_F(6):
        sort_beside(choice, +1);
        break;
    case 'M':
        choice->sort = TOP_USE;
        break;
    case 'R':
        choice->sort = TOP_RATE;
        break;
    case 'W':
        choice->sort = TOP_WAITS;
        break;
    case 'T':
        choice->sort = TOP_AGE;
        break;
    case 'P':
        choice->sort = TOP_PID;
        break;
    case '/':
    case KEY_F(4):
        read_word(choice);
        break;
    case 'p':
        choice->pool = has_sample ? next_pool(sample, choice->pool) : choice->pool;
        break;
    case 'u':
        choice->uid = has_sample ? next_user(sample, choice->uid) : choice->uid;
        break;
    case ' ':
        choice->paused = !choice->paused;
        break;
    case '+':
        choice->interval_ms =
            choice->interval_ms > INTERVAL_MAX_MS / 2 ? INTERVAL_MAX_MS : choice->interval_ms * 2;
        break;
    case '-':
        choice->interval_ms =
            choice->interval_ms < INTERVAL_MIN_MS * 2 ? INTERVAL_MIN_MS : choice->interval_ms / 2;
        break;
    case KEY_UP:
        scroll_by(choice, -1);
        break;
    case KEY_DOWN:
        scroll_by(choice, +1);
        break;
    case KEY_PPAGE:
        scroll_by(choice, -LINES / 2);
        break;
    case KEY_NPAGE:
        scroll_by(choice, LINES / 2);
        break;
    case KEY_HOME:
        choice->first = 0;
        break;
    default:
        if (key >= '1' && key < '1' + (int)TOP_COLUMNS && (enum top_column)(key - '1') != choice->sort)
            choice->hidden[key - '1'] = !choice->hidden[key - '1'];
    }
    return true;
}

/* A sample is taken when its time has come, and the screen is drawn anew after each key. */
static int run_curses(const struct options *options) {
    struct top_sample sample = {0};
    struct top_choice choice;
    uint64_t next_ns = 0;
    unsigned n_silent = 0; /* the terminal is gone where it answers at once, again and again */
    bool goes_on = true;

    choice_init(&choice, options);
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (screen == NULL)
        return complain(EXIT_REFUSED, "the terminal '%s' is not known: use --once or --batch",
                        getenv("TERM") != NULL ? getenv("TERM") : "");
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
    if (terminal_has_color(options->color) && start_color() != ERR) {
        static const short colors[] = {COLOR_GREEN, COLOR_CYAN, COLOR_YELLOW, COLOR_RED};
        use_default_colors(); /* the background is the terminal's, dark or light */
        for (short i = 0; i < 4; i++)
            init_pair((short)(i + 1), colors[i], -1);
    }
    while (goes_on) {
        uint64_t now_ns = clock_now_ns();
        if (!choice.paused && now_ns >= next_ns) {
            top_sample_take(&sample, options);
            next_ns = now_ns + choice.interval_ms * NS_PER_MS;
        }
        draw(&sample, &choice);
        timeout(choice.paused      ? (int)choice.interval_ms
                : next_ns > now_ns ? (int)((next_ns - now_ns) / NS_PER_MS) + 1
                                   : 1);
        uint64_t asked_ns = clock_now_ns();
        int key = getch();
        n_silent = key == ERR && clock_now_ns() - asked_ns < NS_PER_MS / 2 ? n_silent + 1 : 0;
        goes_on = take_key(key, &choice, &sample) && n_silent < SILENT_MAX;
    }
    endwin();
    delscreen(screen);
    top_sample_deinit(&sample);
    return EXIT_SUCCESS;
}
#endif

int top_run(const struct options *options) {
    if (options->json)
        return complain(EXIT_USAGE, "top has no JSON: 'gpupoolctl stats --json' has");
    if (options->once || options->batch)
        return run_plain(options);
#ifdef GPUPOOL_HAVE_CURSES
    if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
        return run_curses(options);
    return complain(EXIT_USAGE, "top needs a terminal: add --once or --batch");
#else
    return complain(EXIT_USAGE, "this gpupoolctl was built without ncurses: add --once or --batch");
#endif
}
