/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is mapped ahead of need: what gpupool_prepare() and the option prepare_host_bytes leave in the
 * process, and what later acquires still have to map. */

#include "tests/entries.h"
#include "tests/integration/cache_fixture.h"

#define PREPARED (32 * MIB)
#define THREADS  4u

static bool is_there(const struct segment *segment) {
    return segment->state == SEGMENT_OPEN || segment->has_vmm_handle;
}

/* Segments that the client has: each is one registration, or one handle that was opened or imported. */
static unsigned mapped_segments(struct gpupool_client *client, uint64_t *ret_bytes) {
    unsigned count = 0;
    uint64_t bytes = 0;

    pthread_mutex_lock(&client->session.segments.lock);
    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_for_each_entry(const struct segment, segment, &client->session.segments.buckets[i], link) {
            count += is_there(segment);
            bytes += is_there(segment) ? segment->size_bytes : 0;
        }
    pthread_mutex_unlock(&client->session.segments.lock);
    if (ret_bytes != NULL)
        *ret_bytes = bytes;
    return count;
}

static uint64_t leased(unsigned kind) {
    return daemon_pool(&daemon_, kind == GPUPOOL_POOL_HOST ? "host" : "device", 0, "leased_bytes");
}

static struct gpupool_client *open_preparing(uint32_t flags, uint64_t prepare_host_bytes) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;

    options.socket = daemon_.socket;
    options.flags = flags;
    options.decay_ns = GPUPOOL_FOREVER;
    options.prepare_host_bytes = prepare_host_bytes;
    MUST(gpupool_open(&options, &client));
    return client;
}

/* Acquires buffers of several sizes, and releases them: of host memory PREPARED bytes. For device memory the
 * client leases more than a buffer needs, so there the buffers that come last do not fit. */
static void use_all(struct gpupool_client *client, unsigned kind) {
    static const uint64_t sizes[] = {16 * MIB, 8 * MIB, 4 * MIB + 512, 3 * MIB - 512, MIB};
    const unsigned count = kind == GPUPOOL_POOL_HOST ? sizeof sizes / sizeof *sizes : 3;
    struct gpupool_buffer buffers[sizeof sizes / sizeof *sizes];

    for (unsigned i = 0; i < count; i++) {
        buffers[i] = acquire(client, kind, sizes[i], stream_of(kind));
        MUST(puppet_write_pattern(client, &buffers[i], i + 1, stream_of(kind)));
    }
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(puppet_read_pattern(client, &buffers[i], i + 1, stream_of(kind)), 0);
        MUST(gpupool_release(client, &buffers[i], stream_of(kind)));
    }
}

static void prepare_and_use(unsigned kind, uint32_t flags) {
    uint64_t bytes;

    empty_the_pools();
    struct gpupool_client *client = open_preparing(flags, 0);
    bool keeps = kind == GPUPOOL_POOL_HOST && flags == 0;
    MUST(gpupool_prepare(client, pool_of(client, kind), PREPARED));
    unsigned mapped = mapped_segments(client, &bytes);
    assert_true(bytes >= PREPARED);
    assert_int_equal(leased(kind), keeps ? PREPARED : 0);
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    for (unsigned round = 0; round < 3; round++)
        use_all(client, kind);
    assert_int_equal(mapped_segments(client, NULL), mapped);
    if (keeps)
        assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void prepare_with_a_cache(unsigned kind) {
    prepare_and_use(kind, 0);
}

static void prepare_without_a_cache(unsigned kind) {
    prepare_and_use(kind, GPUPOOL_OPEN_NO_CACHE);
}

static void what_was_prepared_is_acquired_without_a_mapping(void **state) {
    (void)state;
    for_each_kind(prepare_with_a_cache);
}

static void a_client_without_a_cache_maps_and_keeps_nothing(void **state) {
    (void)state;
    for_each_kind(prepare_without_a_cache);
}

static void one_buffer(unsigned kind) {
    empty_the_pools();
    struct gpupool_client *client = open_cached();
    MUST(gpupool_prepare(client, pool_of(client, kind), PREPARED));
    unsigned mapped = mapped_segments(client, NULL);
    struct gpupool_buffer buffer = acquire(client, kind, PREPARED, stream_of(kind));
    assert_int_equal(mapped_segments(client, NULL), mapped);
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    close_cached(client);
}

static void one_buffer_of_all_that_was_prepared_needs_no_mapping(void **state) {
    (void)state;
    for_each_kind(one_buffer);
}

static void small_buffers_fit_what_was_prepared(void **state) {
    (void)state;
    empty_the_pools();
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffers[64];

    MUST(gpupool_prepare(client, pool_of(client, GPUPOOL_POOL_HOST), 64 * 4096));
    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    for (unsigned i = 0; i < 64; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_HOST, 4096, NULL);
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_int_equal(mapped_segments(client, NULL), 1);
    for (unsigned i = 0; i < 64; i++)
        MUST(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    close_cached(client);
}

static void only_what_is_missing_is_leased(void **state) {
    (void)state;
    empty_the_pools();
    struct gpupool_client *client = open_cached();
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);

    MUST(gpupool_prepare(client, pool, PREPARED));
    MUST(gpupool_prepare(client, pool, PREPARED));
    MUST(gpupool_prepare(client, pool, 1));
    assert_int_equal(leased(GPUPOOL_POOL_HOST), PREPARED);
    MUST(gpupool_prepare(client, pool, PREPARED + 8 * MIB));
    assert_int_equal(leased(GPUPOOL_POOL_HOST), PREPARED + 8 * MIB);

    /* Memory in use does not count. Released memory counts, also while it lies in a thread's cache. */
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, 8 * MIB, NULL);
    MUST(gpupool_prepare(client, pool, PREPARED + 8 * MIB));
    assert_int_equal(leased(GPUPOOL_POOL_HOST), PREPARED + 16 * MIB);
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    MUST(gpupool_prepare(client, pool, PREPARED + 16 * MIB));
    assert_int_equal(leased(GPUPOOL_POOL_HOST), PREPARED + 16 * MIB);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void memory_that_went_back_stays_mapped(void **state) {
    (void)state;
    empty_the_pools();
    struct gpupool_client *client = open_cached();
    uint64_t bytes;

    MUST(gpupool_prepare(client, pool_of(client, GPUPOOL_POOL_HOST), PREPARED));
    unsigned mapped = mapped_segments(client, NULL);
    MUST(gpupool_trim(client, &bytes));
    assert_int_equal(bytes, PREPARED);
    assert_int_equal(leased(GPUPOOL_POOL_HOST), 0);
    assert_int_equal(mapped_segments(client, NULL), mapped);
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, PREPARED, NULL);
    assert_int_equal(mapped_segments(client, NULL), mapped);
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    close_cached(client);
}

/* --- too much --- */

static void too_much(unsigned kind) {
    const uint64_t limit = POOL_MIB * MIB;
    struct gpupool_buffer other;

    empty_the_pools();
    struct gpupool_client *client = open_cached(), *holder = open_preparing(GPUPOOL_OPEN_NO_CACHE, 0);
    uint32_t pool = pool_of(client, kind);
    MUST_BE(gpupool_prepare(client, pool, limit + 1), GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_prepare(client, pool, UINT64_MAX), GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_prepare(client, pool, 0), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_prepare(client, pool + 77, 1), GPUPOOL_E_NO_POOL);
    MUST_BE(gpupool_prepare(NULL, pool, 1), GPUPOOL_E_INVALID);
    assert_int_equal(mapped_segments(client, NULL), 0);

    other = acquire(holder, kind, limit / 2, NULL);
    MUST_BE(gpupool_prepare(client, pool, limit / 2 + MIB), GPUPOOL_E_EXHAUSTED);
    assert_non_null(strstr(gpupool_error_text(), "preparing 33 MiB"));
    assert_int_equal(leased(kind), limit / 2); /* nothing is kept, also not what there was */
    unsigned mapped = mapped_segments(client, NULL);
    assert_true(mapped > 0);
    assert_int_equal(atomic_load(&client->session.page.memory->shortage.pools), 0); /* no process was asked */
    MUST(gpupool_prepare(client, pool, limit / 2));
    assert_int_equal(mapped_segments(client, NULL), mapped);
    MUST(gpupool_release(holder, &other, GPUPOOL_NO_STREAM));
    gpupool_close(holder);
    close_cached(client);
}

static void a_call_that_finds_too_little_keeps_nothing(void **state) {
    (void)state;
    for_each_kind(too_much);
}

static void scattered(unsigned kind) {
    struct gpupool_buffer buffers[POOL_MIB / 4];

    empty_the_pools();
    struct gpupool_client *client = open_cached(), *holder = open_preparing(GPUPOOL_OPEN_NO_CACHE, 0);
    for (unsigned i = 0; i < POOL_MIB / 4; i++)
        buffers[i] = acquire(holder, kind, 4 * MIB, NULL);
    for (unsigned i = 0; i < POOL_MIB / 4; i += 2)
        MUST(gpupool_release(holder, &buffers[i], GPUPOOL_NO_STREAM));
    MUST(gpupool_prepare(client, pool_of(client, kind), POOL_MIB / 2 * MIB));
    unsigned mapped = mapped_segments(client, NULL);
    for (unsigned i = 0; i < POOL_MIB / 4; i += 2)
        buffers[i] = acquire(client, kind, 4 * MIB, stream_of(kind));
    assert_int_equal(mapped_segments(client, NULL), mapped);
    for (unsigned i = 0; i < POOL_MIB / 4; i++)
        MUST(gpupool_release(i % 2 == 0 ? client : holder, &buffers[i], stream_of(kind)));
    assert_true(stream_heaps_are_valid(client));
    gpupool_close(holder);
    close_cached(client);
}

static void what_is_free_in_several_ranges_is_prepared_too(void **state) {
    (void)state;
    for_each_kind(scattered);
}

static void while_a_thread_waits_for_room_no_memory_is_kept(void **state) {
    (void)state;
    empty_the_pools();
    struct gpupool_client *client = open_cached();
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);

    client->session.page.memory->shortage.pools = UINT64_C(1) << (pool - 1);
    shortage_begin(&client->cache, pool);
    MUST_BE(gpupool_prepare(client, pool, PREPARED), GPUPOOL_E_EXHAUSTED);
    assert_int_equal(leased(GPUPOOL_POOL_HOST), 0);
    client->session.page.memory->shortage.pools = 0;
    MUST(gpupool_prepare(client, pool, PREPARED));
    assert_int_equal(leased(GPUPOOL_POOL_HOST), PREPARED);
    close_cached(client);
}

/* --- the option --- */

static void the_open_call_prepares_host_memory(void **state) {
    (void)state;
    empty_the_pools();
    struct gpupool_client *client = open_preparing(0, PREPARED);
    uint64_t bytes;

    unsigned mapped = mapped_segments(client, &bytes);
    assert_true(mapped > 0 && bytes >= PREPARED);
    assert_int_equal(leased(GPUPOOL_POOL_HOST), PREPARED);
    use_all(client, GPUPOOL_POOL_HOST);
    assert_int_equal(mapped_segments(client, NULL), mapped);
    close_cached(client);
    for (unsigned i = 0; i < 2; i++) {
        client = open_preparing(
            i == 0 && !test_host_exports_vmm() ? GPUPOOL_OPEN_NO_CUDA : GPUPOOL_OPEN_NO_CACHE, PREPARED);
        assert_true(mapped_segments(client, NULL) > 0);
        close_cached(client);
    }
}

static void an_open_call_that_cannot_prepare_leaves_nothing(void **state) {
    (void)state;
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;

    empty_the_pools();
    options.socket = daemon_.socket;
    options.prepare_host_bytes = (POOL_MIB + 1) * MIB;
    unsigned descriptors = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
    MUST_BE(gpupool_open(&options, &client), GPUPOOL_E_TOO_LARGE);
    assert_non_null(strstr(gpupool_error_text(), "preparing 65 MiB"));
    assert_null(client);
    assert_int_equal(count_entries("/proc/self/fd"), descriptors);
    WAIT_UNTIL(count_entries("/proc/self/task") == threads);
    assert_int_equal(daemon_sessions(&daemon_, "active"), 0);
    assert_int_equal(daemon_sum(&daemon_, "leases"), 0);

    struct gpupool_client *holder = open_preparing(0, (POOL_MIB - 8) * MIB);
    options.prepare_host_bytes = PREPARED;
    MUST_BE(gpupool_open(&options, &client), GPUPOOL_E_EXHAUSTED);
    assert_null(client);
    assert_int_equal(leased(GPUPOOL_POOL_HOST), (POOL_MIB - 8) * MIB);
    close_cached(holder);
}

/* --- threads --- */

static void *prepare_and_acquire(void *argument) {
    struct gpupool_client *client = argument;

    for (unsigned round = 0; round < 20; round++) {
        MUST(gpupool_prepare(client, pool_of(client, GPUPOOL_POOL_HOST), 4 * MIB));
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, 4 * MIB, NULL);
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    }
    return NULL;
}

static void threads_prepare_at_the_same_time(void **state) {
    (void)state;
    pthread_t threads[THREADS];

    empty_the_pools();
    struct gpupool_client *client = open_cached();
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, prepare_and_acquire, client), 0);
    for (unsigned i = 0; i < THREADS; i++)
        TEST_JOIN(threads[i], NULL);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_prepared_is_acquired_without_a_mapping),
        cmocka_unit_test(a_client_without_a_cache_maps_and_keeps_nothing),
        cmocka_unit_test(one_buffer_of_all_that_was_prepared_needs_no_mapping),
        cmocka_unit_test(small_buffers_fit_what_was_prepared),
        cmocka_unit_test(only_what_is_missing_is_leased),
        cmocka_unit_test(memory_that_went_back_stays_mapped),
        cmocka_unit_test(a_call_that_finds_too_little_keeps_nothing),
        cmocka_unit_test(what_is_free_in_several_ranges_is_prepared_too),
        cmocka_unit_test(while_a_thread_waits_for_room_no_memory_is_kept),
        cmocka_unit_test(the_open_call_prepares_host_memory),
        cmocka_unit_test(an_open_call_that_cannot_prepare_leaves_nothing),
        cmocka_unit_test(threads_prepare_at_the_same_time),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
