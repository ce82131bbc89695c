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
#include "daemon/admin/admin_budget.h"
#include "daemon/admin/admin_terms.h"
#include "daemon/config/reload.h"
#include "daemon/loop/scheduler.h"

#define ADMIN_LINE_MAX    16384u /* bytes without the newline; the longest request has some 40 */
#define ADMIN_CLIENTS_MAX 64u    /* the one that has been silent for longest makes room */

/* The admin clients of a daemon. */
struct admin {
    struct admin_terms terms;
    struct list clients; /* struct admin_client.link, the one heard last at the end */
    struct list resting; /* struct admin_client.resting_link: while their users' budgets are used up */
    unsigned n_clients;
    struct admin_budget budget;
    uv_timer_t timer; /* active while a client rests */
};

struct admin_client {
    struct admin *admin;
    uid_t uid;
    uv_pipe_t pipe;
    uv_write_t write;
    char *reply; /* being written */
    bool ending; /* close after the reply */
    char line[ADMIN_LINE_MAX + 1];
    size_t line_size;         /* read and not answered */
    bool has_nothing;         /* to be read, as rights_look() says */
    struct list link, resting_link;
    struct turn turn; /* waits with a whole line */
    struct reload_waiter
        reloading; /* linked while the reload that it asked for is under way: it reads nothing */
};

void admin_init(struct admin *admin, const struct admin_terms *terms);

/* The timer is closed with the loop's handles. */
void admin_start(struct admin *admin);

/* Closes all connections. */
void admin_drop_all(struct admin *admin);

/* Takes an accepted socket. */
void admin_accept(struct admin *admin, int fd);

/* Closes the connection; its memory goes with the loop's next turn. */
void admin_drop(struct admin_client *client);

#endif
