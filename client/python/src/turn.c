/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/src/turn.h"

/* A thread that waits. It lies on the thread's stack. */
struct turn_waiter {
    PyThread_type_lock lock; /* taken; turn_pass() releases it */
    struct turn_waiter *next;
};

static int turn_await(struct turn *turn) {
    struct turn_waiter self = {.lock = PyThread_allocate_lock()};

    if (self.lock == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    (void)PyThread_acquire_lock(self.lock, NOWAIT_LOCK);
    /* turn_pass() takes it out before this function returns */
    if (turn->first == NULL)
        turn->first = &self; /* cppcheck-suppress autoVariables */
    else
        turn->last->next = &self; /* cppcheck-suppress autoVariables */
    turn->last = &self;           /* cppcheck-suppress autoVariables */
    WITHOUT_LOCK((void)PyThread_acquire_lock(self.lock, WAIT_LOCK));
    PyThread_release_lock(self.lock);
    PyThread_free_lock(self.lock);
    return 0;
}

int turn_take(struct turn *turn) {
    if (!turn->is_taken) {
        turn->is_taken = true;
        return 0;
    }
    if (!Py_IsInitialized()) { /* the thread that has it never comes back */
        PyErr_SetString(PyExc_RuntimeError, "the interpreter ends while another thread uses the buffer");
        return -1;
    }
    return turn_await(turn);
}

void turn_pass(struct turn *turn) {
    struct turn_waiter *next = turn->first;

    if (next == NULL) {
        turn->is_taken = false;
        return;
    }
    turn->first = next->next;
    PyThread_release_lock(next->lock);
}
