/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_MISTAKES_H
#define DAEMON_CONFIG_MISTAKES_H
/*
 * The mistakes of a configuration, in the order of their lines: all are counted, and the first ones are kept
 * as text, so that a file of any size has a bounded answer. A text begins with the place of the mistake. It
 * is UTF-8 without control characters, whatever the file has.
 */

#define CONFIG_MISTAKES_MAX 20u  /* as many as fit a terminal */
#define CONFIG_MISTAKE_SIZE 640u /* a path, a line of the file and the remedy */

/* The place of a setting: in a file, or on the command line. Borrows its texts. */
struct config_place {
    struct config_mistakes *mistakes; /* get the complaints about it */
    const char *path;                 /* of the file; NULL: none */
    int line;                         /* CONFIG_COMMAND_LINE: an option */
    const char *option;               /* without its hyphens; NULL: none */
};

struct config_mistakes {
    unsigned count; /* of all */
    struct {
        int line;
        char text[CONFIG_MISTAKE_SIZE];
    } first[CONFIG_MISTAKES_MAX]; /* as many as count says, up to CONFIG_MISTAKES_MAX */
};

/* Adds a mistake at a place. Returns -EINVAL. */
int config_mistake(const struct config_place *place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* How many texts there are. */
unsigned config_mistakes_told(const struct config_mistakes *mistakes);

/* Logs all as errors: the texts, and how many more there are. */
void config_mistakes_log(const struct config_mistakes *mistakes);

/* Replaces what is not printable UTF-8 by question marks. */
void config_clean(char *text);

#endif
