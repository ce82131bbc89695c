/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_KEEPER_STATE_H
#define DAEMON_KEEPER_STATE_H
/*
 * The keeper's knowledge, as data, and its way to the program that the keeper executes in its own place: text in
 * a memory file, whose number a variable of the environment has. Lines that the other program does not know
 * are ignored, so an older and a newer keeper understand each other.
 */
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/keeper/inbox.h"
#include "daemon/keeper/kept.h"

struct keeper_state {
    char program[PATH_MAX]; /* the daemon's file, which is looked up by this path at each start */
    struct inbox inbox;
    struct kept kept;
    pid_t child;   /* the daemon; 0: none runs */
    pid_t adopted; /* a daemon that this keeper did not start, once the child has named it; then also child */
    int adopted_fd;         /* its pidfd; -1: there is none */
    int told_status;        /* that the adopted daemon is about to exit with; -1: it did not say */
    bool is_ready;          /* it said so */
    bool is_stopping;       /* a stop was forwarded */
    bool must_reload;       /* a SIGHUP came before the daemon could take it */
    unsigned starts;        /* of daemons */
    unsigned deaths;        /* in a row, of daemons that were not ready */
    unsigned pauses;        /* the next one's place in the table of pauses */
    uint64_t ready_ns;      /* when it became ready */
    uint64_t next_start_ns; /* where none runs */
    int status;             /* how the last one ended */
    int ready_fd;           /* see keeper_options */
};

/* Writes the state to a memory file, and has it, the descriptors and the sockets inherited by the next
 * program. The variable is set. Returns a descriptor, or a negative errno. */
int state_pass(const struct keeper_state *state);

/* After an exec that failed: nothing is inherited any more. Closes the memory file. */
void state_pass_not(const struct keeper_state *state, int fd);

/* Reads the state that this process left before it executed the program. Returns 1, or 0 where it left none,
 * or a negative errno. Unsets the variable. */
int state_take(struct keeper_state *state);

#endif
