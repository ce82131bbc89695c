/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_NOTICES_H
#define DAEMON_LOOP_NOTICES_H
/*
 * Notices: short texts of what an operator should know for as long as the daemon runs, which the stats show.
 * The texts are constants.
 */
#define NOTICES_MAX 8u

struct notices {
    const char *texts[NOTICES_MAX];
    unsigned count;
};

/* Adds a text that is not there yet, while there is room. */
void notices_add(struct notices *notices, const char *text);

#endif
