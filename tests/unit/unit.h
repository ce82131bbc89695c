/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_H
#define TESTS_UNIT_H
/* The beginning of each unit test program: cmocka with the headers that it needs, and waits with a bound. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/bounded.h"

static inline void *run_in_thread(void *(*main)(void *), void *argument, const char *name) {
    pthread_t thread;
    void *result = NULL;

    assert_int_equal(pthread_create(&thread, NULL, main, argument), 0);
    int error = test_join(thread, &result);
    if (error != 0)
        fail_msg("the thread of %s() does not end: %s", name, strerror(error));
    return result;
}

/* Calls the function in a thread of its own, and returns its result. A thread that does not end fails the
 * test. */
#define RUN_IN_THREAD(main, argument) run_in_thread(main, argument, #main)

#endif
