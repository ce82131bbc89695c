/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two clients of a process under threads that come and go, while others trim, and while the process forks: no
 * piece is had by two, nothing is lost, and no child hangs.
 */
#include "tests/integration/cache_fixture.h"

#define CLIENTS  2u
#define THREADS  4u  /* at a time */
#define LIVES    250u /* of each, one after the other */
#define PIECES   6u
#define TRIMMERS 2u
#define FORKS    20u

static struct gpupool_client *clients[CLIENTS];
static uint32_t pools[CLIENTS];
static atomic_bool over;
static atomic_uint failures;

/* Takes from both clients, marks what it has, and gives most of it back before it ends. The rest is given
 * back by who comes next. */
struct left {
    struct gpupool_buffer buffers[CLIENTS];
    bool full;
};

static void *live(void *argument) {
    struct left *left = argument;
    struct gpupool_buffer buffers[PIECES];
    uint64_t *words[PIECES];
    int r = 0;

    for (unsigned client = 0; client < CLIENTS; client++) {
        if (left->full)
            r |= gpupool_release(clients[client], &left->buffers[client], GPUPOOL_NO_STREAM);
        for (unsigned i = 0; i < PIECES; i++) {
            uint64_t size_bytes = (uint64_t)512 << (i * 2); /* up to 512 KiB */
            r |= gpupool_acquire(clients[client], pools[client], size_bytes, NULL, GPUPOOL_FOREVER, 0,
                                 &buffers[i]);
            if (r < 0)
                break;
            words[i] = buffers[i].data;
            *words[i] = (uintptr_t)&words[i];
        }
        for (unsigned i = 0; r == 0 && i < PIECES; i++) {
            if (*words[i] != (uintptr_t)&words[i])
                failures++;
            if (i == 2) {
                left->buffers[client] = buffers[i];
                continue;
            }
            if (gpupool_release(clients[1 - client], &buffers[i], GPUPOOL_NO_STREAM) != GPUPOOL_E_INVALID)
                failures++; /* it is another client's */
            r |= gpupool_release(clients[client], &buffers[i], GPUPOOL_NO_STREAM);
        }
    }
    left->full = true;
    if (r != 0)
        failures++;
    return NULL;
}

static void *succeed_each_other(void *argument) {
    struct left left = {0};
    (void)argument;
    for (unsigned i = 0; i < LIVES; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, live, &left) != 0 || test_join(thread, NULL) != 0) {
            failures++;
            break;
        }
    }
    for (unsigned client = 0; left.full && client < CLIENTS; client++)
        if (gpupool_release(clients[client], &left.buffers[client], GPUPOOL_NO_STREAM) != 0)
            failures++;
    return NULL;
}

static void *trim(void *argument) {
    (void)argument;
    while (!over)
        for (unsigned client = 0; client < CLIENTS; client++)
            if (gpupool_trim(clients[client], NULL) != 0)
                failures++;
    return NULL;
}

static void fork_once(void) {
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct gpupool_buffer buffer;
        alarm(30); /* a lock that another thread had would hold this child for ever */
        int r = gpupool_acquire(clients[0], pools[0], 512, NULL, GPUPOOL_NOW, 0, &buffer);
        for (unsigned client = 0; client < CLIENTS; client++)
            gpupool_close(clients[client]);
        _exit(r == GPUPOOL_E_FORKED ? 0 : 1);
    }
    status = test_wait(pid);
    assert_int_equal(status, 0);
}

static void threads_come_and_go_while_others_trim_and_fork(void **state) {
    pthread_t threads[THREADS], trimmers[TRIMMERS];

    (void)state;
    over = false;
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i] = open_cached();
        pools[i] = pool_of(clients[i], GPUPOOL_POOL_HOST);
    }
    for (unsigned i = 0; i < TRIMMERS; i++)
        assert_int_equal(pthread_create(&trimmers[i], NULL, trim, NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, succeed_each_other, NULL), 0);
    for (unsigned i = 0; !TEST_IS_THREAD_SANITIZED && i < FORKS; i++)
        fork_once();
    for (unsigned i = 0; i < THREADS; i++)
        TEST_JOIN(threads[i], NULL);
    over = true;
    for (unsigned i = 0; i < TRIMMERS; i++)
        TEST_JOIN(trimmers[i], NULL);
    assert_int_equal(failures, 0);
    for (unsigned i = 0; i < CLIENTS; i++) {
        assert_true(stream_heaps_are_valid(clients[i]));
        MUST(gpupool_trim(clients[i], NULL));
        assert_true(list_is_empty(&clients[i]->cache.threads));   /* each took its cache along */
        assert_true(clients[i]->cache.counters.lines <= THREADS); /* and left its line to the next */
    }
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    gpupool_close(clients[0]);
    close_cached(clients[1]);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_come_and_go_while_others_trim_and_fork),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
