/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_H
#define DAEMON_ADMIN_ADMIN_H
/*
 * The administrative socket: one JSON object a line in, one a line out, in order. An admin client is one
 * connection of it. Lines are bounded, replies are not read ahead of: while one is being written, nothing
 * more is read. A user who asks without end is answered at the pace of daemon/admin/admin_budget.h. Bad input
 * is answered with an error; a line that is too long also ends the connection.
 */
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <uv.h>

#include "base/list.h"
#include "daemon/config/reload.h"
#include "daemon/loop/scheduler.h"

struct daemon;

#define ADMIN_LINE_MAX    16384u /* bytes without the newline; the longest request has some 40 */
#define ADMIN_CLIENTS_MAX 64u    /* the one that has been silent for longest makes room */

struct admin_client {
    struct daemon *daemon;
    uid_t uid;
    uv_pipe_t pipe;
    uv_write_t write;
    char *reply; /* being written */
    bool ending; /* close after the reply */
    char line[ADMIN_LINE_MAX + 1];
    size_t line_size;         /* read and not answered */
    bool has_nothing;         /* to be read, as rights_look() says */
    struct list link;         /* in daemon->admin_clients, the one heard last at the end */
    struct turn turn;         /* waits with a whole line */
    struct reload_waiter
        reloading;            /* linked while the reload that it asked for is under way: it reads nothing */
    struct list resting_link; /* in daemon->admin_resting, while its user's budget is used up */
};

/* Takes an accepted socket. */
void admin_accept(struct daemon *daemon, int fd);

/* Closes the connection; its memory goes with the loop's next turn. */
void admin_drop(struct admin_client *client);

#endif
