/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_TURNS_H
#define DAEMON_TURNS_H
/*
 * Turns: in which order those are served who have sent something. One turn is one question and its answer;
 * after each the loop looks who else has come.
 *
 * Whose last turn is longest ago is next: first among users, then among that user's processes; a process's
 * connections follow in the order in which they came. So whoever has one question now and then waits for no
 * more than the turn that is going on, beside a process that asks without end on any number of connections;
 * and nobody is left out, for having had a turn puts one behind all the others. A user is not slowed down by
 * how many processes another has, nor a process by how many connections. Who is new counts as just served: a
 * process that is made anew for each question gains nothing by that.
 *
 * New connections come last: while requests wait, TURNS_PASSES_MAX turns at most pass them. A client whose
 * request arrives during a turn so waits for the rest of that turn, and not for an accept() as well.
 *
 * Pure: knows neither sockets nor clock. Owned by the daemon; the loop's alone.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"

/* Chains of the tables by which a process and a user are found: few enough to be small, and with a thousand
 * processes a chain has four. */
#define TURNS_PROCESS_CHAINS 256u
#define TURNS_USER_CHAINS    64u

/* The listeners' turns: no user has this uid (POSIX: it means "no user" to chown()). */
#define TURNS_NOBODY ((uid_t)-1)

/* So many turns of users may pass the listeners' first. */
#define TURNS_PASSES_MAX 8u

struct turns {
    uint64_t last;       /* turns given so far */
    struct list waiting; /* struct turn_user.rank.link, by rank */
    unsigned n_waiting;  /* struct turn, of all processes */
    unsigned n_passes;   /* turns that were given since the listeners' were the next */
    struct list users[TURNS_USER_CHAINS];
    struct list processes[TURNS_PROCESS_CHAINS];
};

/* A place in one of the lines. */
struct turn_rank {
    struct list link; /* in the line, while something waits */
    uint64_t served;  /* turns->last when it was last served */
};

struct turn_user {
    struct turn_rank rank;
    uid_t uid;
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

/* Embedded in what is served. Zeroed: it has not joined. */
struct turn {
    struct list link; /* in process->waiting */
    struct turns *turns;
    struct turn_process *process;     /* NULL: has not joined */
    void (*serve)(struct turn *turn); /* serves one question; may leave, and may wait again */
};

void turns_init(struct turns *turns);

/* Whom a turn is counted to. Processes of other PID namespaces (pid 0) count as one of their user. Returns 0
 * or -ENOMEM. */
int turn_join(struct turn *turn, struct turns *turns, uid_t uid, pid_t pid, void (*serve)(struct turn *turn));
/* Gives up; harmless for one that has not joined. */
void turn_leave(struct turn *turn);

/* It has something to be served, from now on. Harmless when that is known. */
void turn_wait(struct turn *turn);
bool turn_is_waiting(const struct turn *turn);

/* Takes who is next out of the line; NULL: nobody waits. */
struct turn *turns_next(struct turns *turns);
bool turns_are_over(const struct turns *turns);

#endif
