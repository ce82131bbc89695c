/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CAMPAIGN_H
#define TESTS_CAMPAIGN_H
/*
 * A campaign of a simulator: it plays the history of one seed after another in child processes, and the parent
 * judges. Here are the options, the exit statuses and the last words of all simulators.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum campaign_status {
    CAMPAIGN_CLEAN,
    CAMPAIGN_FOUND,
    CAMPAIGN_USAGE,
    CAMPAIGN_CRASHED,
    CAMPAIGN_IDLE, /* nothing was found, but something should have been, or not all happened that should */
};

#define CAMPAIGN_FAILURE_SIZE 768u

struct campaign {
    const char *name;        /* of the program, and of the ./dev command that repeats a seed */
    const char *about;       /* what it plays, for --help */
    const char *steps_about; /* what --steps says */
    unsigned validate_every; /* --validate; 0 from the beginning: the program has no such option */
    /* the options: */
    uint64_t seed, steps, most_steps;
    double seconds;
    bool is_one; /* seed alone */
    const char *expected;
};

/* How often something happened: a member of a tally, in bytes from its beginning. */
struct campaign_count {
    const char *name;
    size_t offset;
};

/* Reads the options. Ends the program after --help, and where they make no sense. */
void campaign_parse(struct campaign *campaign, int argc, char **argv);

/* Whether no further history is to be played. */
bool campaign_is_over(const struct campaign *campaign, uint64_t steps, double seconds);

/* The text of a failure, for the parent. */
void campaign_describe(char text[static CAMPAIGN_FAILURE_SIZE], uint64_t step, const char *step_name,
                       uint64_t now_ns, const char *what, const char *condition, const char *file, int line);

/* A child ended with a wait status that is not that of CAMPAIGN_CLEAN: tells of the failure. failure: its
 * text, "" where the child broke off; step: how far it came; steps: of all histories. Returns the program's
 * exit status. */
int campaign_tell(const struct campaign *campaign, uint64_t seed, uint64_t step, uint64_t steps,
                  char failure[static CAMPAIGN_FAILURE_SIZE], int wait_status);

/* Prints a tally. Returns whether each member of it counted something. */
bool campaign_print_counts(const struct campaign_count *counts, size_t n_counts, const void *tally);

/* All histories ended well: prints the last line. happened: so did all that should, or too few steps were
 * made for that. Returns the program's exit status. */
int campaign_conclude(const struct campaign *campaign, uint64_t steps, uint64_t histories, double seconds,
                      bool happened);

#endif
