/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_INHERITANCE_H
#define DAEMON_DATA_INHERITANCE_H
/*
 * How a successor comes by the clients of the daemon before: their sockets, processes, pages, boards, and the
 * messages that were not sent yet. Between core_inherit() and these calls:
 *
 *   inheritance_begin() ──▶ inheritance_session()… ──▶ inheritance_end() ──▶ inheritance_resume()
 */
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/kept.h"

struct clients;

struct inherited_client {
    uint64_t session;
    uint32_t record;
    bool is_taken;
};

struct inheritance {
    struct clients *clients;      /* borrowed */
    struct inherited_client *all; /* by session */
    size_t n_clients;
};

/* Finds the records of clients, and takes the boards. Returns 0, -ENOMEM, or -EBADMSG: *ret_reason, a constant
 * string, says what is wrong. */
int inheritance_begin(struct inheritance *inheritance, struct clients *clients, const char **ret_reason);

/* struct inherit_shell.take_session; argument: the inheritance. */
int inheritance_session(void *argument, struct session *session, const struct kept_session *kept);

/* All sessions are taken: removes records of clients that have none, and finds the messages that are to be sent.
 * Ends the first step. Returns 0 or -ENOMEM. */
int inheritance_end(struct inheritance *inheritance);

/* Serves the clients from now on, and deals with the packet that the daemon before had in hand. */
void inheritance_resume(struct inheritance *inheritance);

/* Frees the bookkeeping. Accepts a zeroed one. */
void inheritance_free(struct inheritance *inheritance);

#endif
