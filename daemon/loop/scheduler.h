/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_SCHEDULER_H
#define DAEMON_LOOP_SCHEDULER_H
/*
 * The scheduler decides which connection is served next. One turn is one request and its reply; after each
 * turn the loop polls all sockets again.
 *
 * The user whose last turn is longest ago is next (all users of a scope count as one: its processes can take
 * any uid), then that user's process whose last turn is longest ago. A
 * process's connections follow in the order in which their requests came. So a client that sends a request
 * now and then waits at most for the turn in progress, however many requests another process sends on however
 * many connections. No client starves: after its turn it is behind all others. The number of one user's
 * processes does not slow down another user, nor does the number of one process's connections slow down
 * another process. A new process counts as just served: a client gains nothing by a new process for each
 * request.
 *
 * New connections come last: while requests wait, SCHEDULER_PASSES_MAX turns at most pass them. So a client
 * whose request arrives during a turn waits for the rest of that turn, and not for an accept() as well.
 *
 * Pure: knows neither sockets nor the clock. Owned by the daemon; the loop's alone.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"

/* Chains of the tables by which a process and a user are found: few enough to be small, and with a thousand
 * processes a chain has four. */
#define SCHEDULER_PROCESS_CHAINS 256u
#define SCHEDULER_USER_CHAINS    64u

/* The listeners' turns: no user and no scope has this key. */
#define SCHEDULER_LISTENERS UINT64_MAX

/* The turns of users that may pass the listeners' first turn. */
#define SCHEDULER_PASSES_MAX 8u

struct scheduler {
    uint64_t last;       /* turns given so far */
    struct list waiting; /* struct turn_user.rank.link, by rank */
    unsigned n_waiting;  /* struct turn, of all processes */
    unsigned n_passes;   /* turns that were given since the listeners' were the next */
    struct list users[SCHEDULER_USER_CHAINS];
    struct list processes[SCHEDULER_PROCESS_CHAINS];
};

/* A place in a wait queue: of users, or of one user's processes. */
struct turn_rank {
    struct list link; /* in the wait queue, while something waits */
    uint64_t served;  /* scheduler->last when it was last served */
};

struct turn_user {
    struct turn_rank rank;
    uint64_t key;
    unsigned n_processes;
    unsigned n_greeting; /* connections that have not said HELLO: the daemon's to count */
    struct list waiting; /* struct turn_process.rank.link */
    struct list chain;
};

struct turn_process {
    struct turn_rank rank;
    struct turn_user *user;
    pid_t pid;
    unsigned n_turns;
    struct list waiting; /* struct turn.link */
    struct list chain;
};

/* Embedded in each object that is served. Zeroed: it has not joined. */
struct turn {
    struct list link; /* in process->waiting */
    struct scheduler *scheduler;
    struct turn_process *process;     /* NULL: has not joined */
    void (*serve)(struct turn *turn); /* serves one question; may leave, and may wait again */
};

void scheduler_init(struct scheduler *scheduler);

/* Joins as a turn of this user (peer_turn_user()) and process. Processes of other PID namespaces (pid 0)
 * count as one process of their user. Returns 0 or -ENOMEM. */
int turn_join(struct turn *turn, struct scheduler *scheduler, uint64_t user, pid_t pid,
              void (*serve)(struct turn *turn));
/* Gives up; harmless for one that has not joined. */
void turn_leave(struct turn *turn);

/* Queues a turn. Harmless when it is queued already. */
void turn_wait(struct turn *turn);
bool turn_is_waiting(const struct turn *turn);

/* Takes the next turn out of its wait queue; NULL: none waits. */
struct turn *scheduler_next(struct scheduler *scheduler);
bool scheduler_is_idle(const struct scheduler *scheduler);

#endif
