/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sleep on words of shared pages, with futex_waitv() and on a kernel that has not got it. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client/session/word_wait.h"
#include "tests/unit/unit.h"

#define FUTEX_WAITV 449

static bool has_no_waitv;

long __real_syscall(long number, ...);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);

long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
    if (number == FUTEX_WAITV && has_no_waitv) {
        errno = ENOSYS;
        return -1;
    }
    return __real_syscall(number, a, b, c, d, e, f);
}

/* Words of a memfd: one mapping for their writer, another one, to read only, for the sleeper. */
static struct {
    _Atomic uint64_t *written;
    const _Atomic uint64_t *read;
} words;

static int set_up(void **state) {
    int fd = memfd_create("words", MFD_CLOEXEC);
    (void)state;

    assert_true(fd >= 0 && ftruncate(fd, 4096) == 0);
    words.written = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    words.read = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(words.written != MAP_FAILED && words.read != MAP_FAILED);
    close(fd);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    munmap((void *)words.written, 4096);
    return munmap((void *)(uintptr_t)words.read, 4096);
}

static struct channel_sleep sleep_on_both(void) {
    struct channel_sleep sleep = {0};
    channel_sleep_add(&sleep, &words.read[0]);
    channel_sleep_add(&sleep, &words.read[1]);
    return sleep;
}

static void a_word_that_has_changed_is_not_slept_on(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        has_no_waitv = i >= 2;
        struct channel_sleep sleep = sleep_on_both();
        words.written[i % 2]++;
        assert_int_equal(word_wait(&sleep, UINT64_MAX), 0);
    }
}

static void sleep_ends_at_its_deadline(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        has_no_waitv = i == 1;
        struct channel_sleep sleep = sleep_on_both();
        uint64_t deadline_ns = clock_now_ns() + 15 * NS_PER_MS; /* longer than a slice */
        assert_int_equal(word_wait(&sleep, deadline_ns), -ETIMEDOUT);
        assert_true(clock_now_ns() >= deadline_ns);
        assert_int_equal(word_wait(&sleep, 0), -ETIMEDOUT);
    }
}

static void *sleep_until_changed(void *argument) {
    struct channel_sleep *sleep = argument;
    int r;

    while ((uint32_t)words.read[0] == sleep->words[0].expected &&
           (uint32_t)words.read[1] == sleep->words[1].expected) {
        r = word_wait(sleep, clock_now_ns() + TEST_WAIT_NS);
        if (r < 0)
            return sleep;
    }
    return NULL;
}

/* The thread sleeps, most likely, when the word is changed. */
static void a_change_of_any_word_wakes(void **state) {
    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        struct channel_sleep sleep = sleep_on_both();
        pthread_t thread;
        void *wrong;
        has_no_waitv = i % 4 >= 2;
        assert_int_equal(pthread_create(&thread, NULL, sleep_until_changed, &sleep), 0);
        test_pause();
        words.written[i % 2]++;
        word_wake(&words.written[i % 2]);
        TEST_JOIN(thread, &wrong);
        assert_null(wrong);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_word_that_has_changed_is_not_slept_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sleep_ends_at_its_deadline, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_change_of_any_word_wakes, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
