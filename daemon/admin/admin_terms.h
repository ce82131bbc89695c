/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_TERMS_H
#define DAEMON_ADMIN_ADMIN_TERMS_H
/* The daemon's objects that admin clients use, and that their commands read and change. All are borrowed. */
#include <stdint.h>
#include <uv.h>

/* For what a command tells people. */
#define ADMIN_WHY_SIZE 256u

struct admin_terms {
    uv_loop_t *loop;
    struct scheduler *scheduler;
    struct closer *closer; /* of sockets */
    struct core *core;
    const struct config *config;
    struct watcher *watcher;
    struct reload *reload;
    struct scopes *scopes;
    const struct channels *channels; /* their pages */
    struct lingering *lingering;
    const struct machine *machine;
    struct listener *data_listener, *admin_listener;
    const struct identity *identity;
    const struct notices *notices;
    const struct desk *desk;
    const struct store *store;
    uint64_t n_descriptors; /* that the daemon may have; 0: not known */
    /* Has the daemon leave everything to the next one, and end. Lets the estate go; returns how many descriptors
     * that were. */
    void (*restart)(void *daemon);
    size_t (*drop_estate)(void *daemon);
    /* As adoption_begin() (daemon/adoption.h). */
    int (*adopt)(void *daemon, const char *notify, uint64_t pid, uint64_t limit, char why[ADMIN_WHY_SIZE]);
    void *daemon;
};

#endif
