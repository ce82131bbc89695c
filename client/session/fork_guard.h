/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_FORK_GUARD_H
#define CLIENT_SESSION_FORK_GUARD_H
/*
 * Tells a forked child from its parent, for the cost of one load. A client owns one guard: a page that the
 * kernel wipes in every child (MADV_WIPEONFORK, Linux 4.14). The byte in it says "this is the process that
 * opened me". Where the kernel has no such advice the guard compares pids instead, which costs a system call.
 */
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct fork_guard {
    volatile unsigned char *page; /* never NULL */
    bool is_wiped; /* in a child; else there is no such page, 0 is in it, and pids are compared */
    pid_t owner;
};

/* Cannot fail: without the page, pids are compared. */
void fork_guard_init(struct fork_guard *guard);

/* Accepts a zeroed guard; may be called in a child. */
void fork_guard_deinit(struct fork_guard *guard);

/* Compares pids: the answer without the page. */
bool fork_guard_is_another_process(const struct fork_guard *guard);

/* Whether the calling process is a forked descendant of the one that initialised the guard. Every call of the
 * library begins with this. */
static inline bool fork_guard_is_child(const struct fork_guard *guard) {
    return guard->is_wiped ? guard->page[0] == 0 : fork_guard_is_another_process(guard);
}

/* Begins a call: 0, or FORKED with the error text set in a forked child. */
int fork_guard_check(const struct fork_guard *guard);

/* Whether the page says that this is the process that initialised the guard. False: not so, or there is no
 * page to say it. */
static inline bool fork_guard_is_at_home(const struct fork_guard *guard) {
    return __builtin_expect(guard->page[0] != 0, 1);
}

#endif
