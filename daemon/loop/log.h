/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_LOG_H
#define DAEMON_LOOP_LOG_H
/*
 * The daemon's messages: one line each on stderr. A line begins with syslog's priority ("<3>") when the
 * journal reads it, and else with the time of day, the daemon's name and the level. Every message says what
 * happened, to which pool or pid, and what the operator can do. Thread-safe: one write a line.
 *
 * A message never waits for its reader: where stderr has no room it is lost, and the next one that is written
 * says how many were.
 */
enum log_level {
    LOG_LEVEL_ERROR,
    LOG_LEVEL_WARNING,
    LOG_LEVEL_INFO,
    LOG_LEVEL_DEBUG,
};

void log_set_level(enum log_level level);

/* Warnings and errors of one thread, for a reader beside the log's: a line each, as many as fit. */
#define LOG_COPY_SIZE 4096u
struct log_copy {
    unsigned count; /* of all */
    unsigned used;  /* of text */
    char text[LOG_COPY_SIZE];
};

/* Has the thread's warnings and errors copied, whatever the level of the log. NULL: no longer. */
void log_copy_to(struct log_copy *copy);

void log_message(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define log_error(...)   log_message(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_message(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...)    log_message(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)   log_message(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
