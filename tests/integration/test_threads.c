/* SPDX-License-Identifier: Apache-2.0 */
/* One process with several clients, and one client with several threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"

#define POOL_MIB 64u
#define THREADS  8u
#define ROUNDS   200u
#define HELD     4u

#include "tests/integration/daemon_fixture.h"

/* --- in the worker --- */

struct thread {
    pthread_t thread;
    struct gpupool_client *client;
    uint32_t pools[2];
    unsigned n_pools, number;
    int result;
    const char *failed;
    char text[256];
};

/* The library's error, or 1 for contents that are not there, with what was being done. */
static int note(struct thread *thread, int result, const char *doing) {
    if (result != 0 && thread->failed == NULL) {
        thread->failed = doing;
        snprintf(thread->text, sizeof thread->text, "%s", gpupool_error_text());
    }
    return result;
}

static int mixed_round(struct thread *thread, struct gpupool_buffer *buffer, uint64_t *seed,
                       uint64_t *random) {
    struct gpupool_client *client = thread->client;
    struct gpupool_buffer_info info;
    struct gpupool_buffer twin;
    struct gpupool_token token;
    int r = 0;

    if (buffer->lease != 0) {
        r = note(thread, puppet_read_pattern(client, buffer, *seed, NULL), "check");
        return r != 0 ? r : note(thread, gpupool_release(client, buffer, NULL), "release");
    }
    uint64_t size = 8 + test_random(random) % (64 * KIB);
    *seed = test_random(random) | 1;
    r = note(thread,
             gpupool_acquire(client, thread->pools[test_random(random) % thread->n_pools], size, NULL,
                             GPUPOOL_FOREVER, 0, buffer),
             "acquire");
    if (r == 0)
        r = note(thread, puppet_write_pattern(client, buffer, *seed, NULL), "write");
    switch (r == 0 ? test_random(random) % 4 : 4) {
    case 0:
        r = note(thread, gpupool_query(client, buffer, &info), "query");
        if (r == 0 && (info.buffer.size_bytes != size || info.buffer.data != buffer->data))
            r = note(thread, 1, "query: another buffer");
        break;
    case 1:
        r = note(thread, gpupool_share(client, buffer, GPUPOOL_NO_STREAM, &token), "share");
        if (r == 0)
            r = note(thread, gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &twin), "attach");
        if (r == 0)
            r = note(thread, puppet_read_pattern(client, &twin, *seed, NULL), "check of the twin");
        if (r == 0)
            r = note(thread, gpupool_release(client, &twin, NULL), "release of the twin");
        break;
    case 2:
        r = note(thread, gpupool_shrink(client, buffer, size / 2 + 1, NULL), "shrink");
        break;
    default:
        break;
    }
    return r;
}

static void *run_thread(void *argument) {
    struct thread *thread = argument;
    struct gpupool_buffer buffers[HELD] = {0};
    uint64_t seeds[HELD], random = thread->number;
    int r = 0;

    for (unsigned round = 0; r == 0 && round < ROUNDS; round++) {
        unsigned which = (unsigned)(test_random(&random) % HELD);
        r = mixed_round(thread, &buffers[which], &seeds[which], &random);
    }
    for (unsigned i = 0; r == 0 && i < HELD; i++)
        if (buffers[i].lease != 0)
            r = note(thread, gpupool_release(thread->client, &buffers[i], NULL), "last release");
    thread->result = r;
    return NULL;
}

/* argument: 1 with the device pool. */
static int play_threads(int fd, const char *argument) {
    struct thread threads[THREADS] = {0};
    struct gpupool_client *client;
    int status = 0;

    (void)fd;
    if (gpupool_open(NULL, &client) < 0 || gpupool_host_pool(client, -1, &threads[0].pools[0]) < 0)
        return 10;
    threads[0].n_pools = 1;
    if (argument[0] == '1' && gpupool_device_pool(client, 0, &threads[0].pools[threads[0].n_pools++]) < 0)
        return 11;
    for (unsigned i = 0; i < THREADS; i++) {
        threads[i] = threads[0];
        threads[i].client = client;
        threads[i].number = i;
    }
    for (unsigned i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i].thread, NULL, run_thread, &threads[i]) != 0)
            return 12;
    for (unsigned i = 0; i < THREADS; i++) {
        if (test_join(threads[i].thread, NULL) != 0)
            return 13;
        if (threads[i].result != 0) {
            fprintf(stderr, "thread %u: %s: %d: %s\n", i, threads[i].failed, threads[i].result,
                    threads[i].text);
            status = 1;
        }
    }
    gpupool_close(client);
    return status;
}

/* --- the tests --- */

static void eight_threads_share_a_client(void **state) {
    struct puppet process;

    (void)state;
    puppet_start_role(&process, &daemon_, "threads", test_has_device() ? "1" : "0");
    assert_int_equal(test_wait(process.pid), 0);
    close_fd(process.fd);
    WAIT_UNTIL(daemon_number(&daemon_, "sessions") == 0);
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0); /* when the streams have passed their fences */
    /* Half of the rounds acquire, mostly from the cache; a quarter of those share, which makes two leases. */
    assert_true(daemon_sum(&daemon_, "acquires") >= THREADS * ROUNDS / 8);
}

static void a_process_may_have_two_clients(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    struct gpupool_token token;
    struct puppet process;

    (void)state;
    puppet_connect(&process, &daemon_);
    process.client = 1;
    PUPPET_MUST(&process, puppet_open(&process, ""));
    assert_int_equal(daemon_number(&daemon_, "sessions"), 2);
    for (unsigned i = 0; i < count; i++) {
        process.client = 0;
        PUPPET_MUST(&process, puppet_acquire(&process, 0, kinds[i], MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&process, puppet_fill(&process, 0, 12));
        PUPPET_MUST(&process, puppet_share(&process, 0, &token));
        process.client = 1;
        /* one's buffer is not the other's, unless it attaches */
        PUPPET_MUST_BE(&process, puppet_release(&process, 0), GPUPOOL_E_STALE);
        PUPPET_MUST(&process, puppet_attach(&process, 1, &token));
        PUPPET_MUST(&process, puppet_check(&process, 1, 12));
        process.client = 0;
        PUPPET_MUST(&process, puppet_release(&process, 0));
        process.client = 1;
        PUPPET_MUST(&process, puppet_check(&process, 1, 12));
        PUPPET_MUST(&process, puppet_release(&process, 1));
    }
    puppet_quit(&process);
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0);
}

static void one_clients_end_leaves_the_other_its_memory(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    struct puppet process;

    (void)state;
    puppet_connect(&process, &daemon_);
    process.client = 1;
    PUPPET_MUST(&process, puppet_open(&process, ""));
    for (unsigned i = 0; i < count; i++) {
        process.client = 0;
        PUPPET_MUST(&process, puppet_acquire(&process, i, kinds[i], MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&process, puppet_fill(&process, i, 40 + i));
        process.client = 1;
        PUPPET_MUST(&process, puppet_acquire(&process, 8 + i, kinds[i], MIB, GPUPOOL_FOREVER, 0));
    }
    PUPPET_MUST(&process,
                puppet_do(&process, PUPPET_CLOSE, 0)); /* client 1: both have the same segments mapped */
    process.client = 0;
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), count * MIB);
    for (unsigned i = 0; i < count; i++) {
        PUPPET_MUST(&process, puppet_check(&process, i, 40 + i));
        PUPPET_MUST(&process, puppet_release(&process, i));
    }
    puppet_quit(&process);
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"threads", play_threads}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_threads_share_a_client),
        cmocka_unit_test(a_process_may_have_two_clients),
        cmocka_unit_test(one_clients_end_leaves_the_other_its_memory),
    };
    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
