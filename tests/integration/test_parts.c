/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests for more segments than a process of few descriptors asks for at once: they are asked for in parts.
 * Device pools have segments of descriptors here, whatever the other tests run on.
 */
#define POOL_MIB 2200u /* whose slots are of PROTO_SLOT_BYTES_MAX */
#include <sys/resource.h>

#include "cache_fixture.h"
#include "client/session/lease.h"

#define DESCRIPTORS 240u                     /* a part may use a fourth of them */
#define PART        PROTO_LEASES_PER_MESSAGE /* segments; not fewer */
#define BYTES       ((PART + 1) * PROTO_SLOT_BYTES_MAX)
#define OTHER_BYTES (1100 * MIB)

/* A release while the first segment of a part is imported. */
static struct {
    struct gpupool_client *client;
    void *stream;
    struct gpupool_buffer buffer;
    atomic_bool is_armed, is_released;
} late;

static void *release_late(void *unused) {
    (void)unused;
    MUST(gpupool_release(late.client, &late.buffer, late.stream));
    return NULL;
}

int __real_lease_bring(struct session *session, const struct lease_part *part, struct segment *segment,
                       const uint8_t *uuid, bool imports);
int __wrap_lease_bring(struct session *session, const struct lease_part *part, struct segment *segment,
                       const uint8_t *uuid, bool imports);
int __wrap_lease_bring(struct session *session, const struct lease_part *part, struct segment *segment,
                       const uint8_t *uuid, bool imports) {
    pthread_t thread;

    if (atomic_exchange(&late.is_armed, false)) {
        assert_int_equal(pthread_create(&thread, NULL, release_late, NULL), 0);
        TEST_JOIN(thread, NULL);
        atomic_store(&late.is_released, true);
    }
    return __real_lease_bring(session, part, segment, uuid, imports);
}

struct waiter {
    pthread_t thread;
    int result;
    struct gpupool_buffer buffer;
};

static void *wait_for_room(void *argument) {
    struct waiter *waiter = argument;

    waiter->result = gpupool_acquire(late.client, pool_of(late.client, GPUPOOL_POOL_DEVICE), BYTES,
                                     late.stream, TEST_WAIT_NS, 0, &waiter->buffer);
    return NULL;
}

static bool waits(void) {
    return core_pool_waits(cache_pool(&late.client->cache, late.buffer.pool));
}

/* A buffer of the process is released between two parts, and serves the request. The part that the daemon has
 * granted goes back. */
static void a_release_between_two_parts_loses_nothing(void **state) {
    struct waiter waiter = {0};
    void *stream;

    (void)state;
    struct gpupool_client *other = open_cached_with_stream(&stream);
    late.client = open_cached_with_stream(&late.stream);
    late.buffer = acquire(late.client, GPUPOOL_POOL_DEVICE, BYTES, late.stream);
    struct gpupool_buffer theirs = acquire(other, GPUPOOL_POOL_DEVICE, OTHER_BYTES, stream);
    assert_int_equal(pthread_create(&waiter.thread, NULL, wait_for_room, &waiter), 0);
    WAIT_UNTIL(waits());
    test_pause(); /* its question goes to the daemon; one that has not is asked in parts, too */
    atomic_store(&late.is_armed, true);
    MUST(gpupool_release(other, &theirs, stream));
    MUST(gpupool_trim(other, NULL));
    TEST_JOIN(waiter.thread, NULL);
    assert_int_equal(waiter.result, 0);
    assert_true(atomic_load(&late.is_released));
    assert_int_equal(waiter.buffer.size_bytes, BYTES);
    MUST(gpupool_release(late.client, &waiter.buffer, late.stream));
    WAIT_UNTIL((gpupool_trim(late.client, NULL), daemon_sum(&daemon_, "leased_bytes")) == 0);
    MUST(gpupool_stream_destroy(other, 0, stream));
    MUST(gpupool_stream_destroy(late.client, 0, late.stream));
    gpupool_close(other);
    close_cached(late.client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_release_between_two_parts_loses_nothing),
    };
    struct rlimit limit;

    setenv("GPUPOOL_TEST_EXPORT", "vmm", 1);
    setenv("GPUPOOL_ARENAS", "1", 1);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1;
    limit.rlim_cur = DESCRIPTORS;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return 1;
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
