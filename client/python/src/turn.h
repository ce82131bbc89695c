/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_TURN_H
#define CLIENT_PYTHON_TURN_H
/*
 * A turn: one thread at a time has it, and threads that want it wait in order, without the interpreter's
 * lock.
 *
 * It is state under the interpreter's lock: free, or taken with a list of waiting threads. A thread that has
 * it runs no code of the program, which might ask for the same turn.
 */
#include "client/python/src/module.h"

struct turn_waiter;

struct turn {
    bool is_taken;
    struct turn_waiter *first, *last;
};

/* Takes the turn, after the threads that wait for it. -1 with an exception. */
int turn_take(struct turn *turn);

/* Passes the turn on to the thread that has waited longest. */
void turn_pass(struct turn *turn);

#endif
