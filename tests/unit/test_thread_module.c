/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread's state (client/session/thread.h) in a library that is loaded when threads run: each new thread
 * gets one of its own, the code that looks for it loses no register, and its callers are found meanwhile.
 */
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/bounded.h"
#include "tests/unit/unit.h"

#define THREADS 20u

static int (*count_changed_vectors)(void);
static void *call_first(void *argument);

/* --- what a profiler sees --- */

#ifdef THREAD_MODULE_DIRECT
#define FRAMES_MAX 32
#define CODE_BYTES 256u /* more than call_first() has */

/* The loader allocates a thread's state when the thread looks for it first. */
static __thread bool is_first;
static unsigned n_looks, n_found;

/* Whether the callers lead to call_first(). */
static bool finds_caller(void) {
    void *frames[FRAMES_MAX];
    int count = backtrace(frames, FRAMES_MAX);

    for (int i = 0; i < count; i++)
        if ((uintptr_t)frames[i] - (uintptr_t)call_first < CODE_BYTES)
            return true;
    return false;
}

void *__libc_malloc(size_t size); /* NOLINT: the C library's name */

void *malloc(size_t size) {
    if (is_first) {
        is_first = false;
        n_looks++;
        n_found += finds_caller();
    }
    return __libc_malloc(size);
}
#endif

/* --- threads --- */

static __attribute__((noinline)) void *call_first(void *argument) {
    (void)argument;
#ifdef THREAD_MODULE_DIRECT
    is_first = true;
#endif
    int changed = count_changed_vectors();
#ifdef THREAD_MODULE_DIRECT
    is_first = false;
#endif
    return (void *)(intptr_t)changed;
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

static void callers_are_found_meanwhile(void **state) {
    (void)state;
#ifdef THREAD_MODULE_DIRECT
    void *frames[1];

    (void)backtrace(frames, 1); /* loads what it needs */
    n_looks = n_found = 0;
    assert_int_equal(threads_that_lose(THREAD_MODULE), 0);
    assert_int_equal(n_looks, THREADS);
    assert_int_equal(n_found, THREADS);
#else
    skip();
#endif
}

/* The test is tested: by the compiler's own access, where the C library is one that changes registers. */
static void the_compilers_own_access_loses_some(void **state) {
    (void)state;
#if defined(THREAD_MODULE_DIRECT) && !__GLIBC_PREREQ(2, 39)
    if (threads_that_lose(THREAD_MODULE_DIRECT) == 0)
        skip(); /* a distribution has mended it */
#else
    skip();
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_looks_for_its_state_first_loses_no_register),
        cmocka_unit_test(callers_are_found_meanwhile),
        cmocka_unit_test(the_compilers_own_access_loses_some),
    };
    return cmocka_run_group_tests_name("thread_module", tests, NULL, NULL);
}
