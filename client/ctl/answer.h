/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_ANSWER_H
#define CLIENT_CTL_ANSWER_H
/*
 * One exchange with the daemon, as a command sees it: asked, read, and shown to people as a view or to
 * programs as the line that came; and the question before something is destroyed. Where something goes wrong,
 * that is told here. All functions return EXIT_SUCCESS, or the code to exit with.
 */
#include <stddef.h>

#include "client/ctl/json.h"

struct options;
struct output;

/* An answer of the daemon's, read and as it came. */
struct answer {
    struct reply *reply;
    char *line;
    size_t length;
};

void answer_deinit(struct answer *answer);

/* Asks the daemon one thing. command: which reply it is. */
int answer_ask(const struct options *options, const char *command, const char *request,
               struct answer *ret_answer);

/* Shows an answer, or tells that it is a refusal. */
int answer_show(const struct options *options, const struct answer *answer,
                void (*view)(struct output *output, const struct cJSON *reply));

/* The tool itself refuses: as the daemon would, with --json as an object too. */
int answer_refuse(const struct options *options, const char *code, const char *message);

/* Asks before something is destroyed, unless --yes was given. done: what would be, such as "released". */
int answer_confirm(const struct options *options, const char *question, const char *done);

#endif
