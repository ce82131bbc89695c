/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's state (client/session/thread.h) in a library that is loaded when threads run: each new thread
 * gets one of its own, and the code that looks for it loses no register.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/bounded.h"
#include "tests/unit/unit.h"

#define THREADS 20u

static int (*count_changed_vectors)(void);

static void *call_first(void *argument) {
    (void)argument;
    return (void *)(intptr_t)count_changed_vectors();
}

/* How many new threads lost a vector. */
static unsigned threads_that_lose(const char *library) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    unsigned losing = 0;

    if (handle == NULL)
        fail_msg("%s", dlerror());
    *(void **)&count_changed_vectors = dlsym(handle, "count_changed_vectors");
    assert_non_null(count_changed_vectors);
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_t thread;
        void *changed;
        assert_int_equal(pthread_create(&thread, NULL, call_first, NULL), 0);
        TEST_JOIN(thread, &changed);
        assert_true((intptr_t)changed >= 0); /* its state was new */
        losing += changed != NULL;
    }
    return losing;
}

static void a_thread_that_looks_for_its_state_first_loses_no_register(void **state) {
    (void)state;
    assert_int_equal(threads_that_lose(THREAD_MODULE), 0);
}

/* The test is tested: by the compiler's own access, where the C library is one that changes registers. */
static void the_compilers_own_access_loses_some(void **state) {
    (void)state;
#if defined(THREAD_MODULE_DIRECT) && !__GLIBC_PREREQ(2, 39)
    assert_int_equal(threads_that_lose(THREAD_MODULE_DIRECT), THREADS);
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_looks_for_its_state_first_loses_no_register),
        cmocka_unit_test(the_compilers_own_access_loses_some),
    };
    return cmocka_run_group_tests_name("thread_module", tests, NULL, NULL);
}
