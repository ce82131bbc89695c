/* SPDX-License-Identifier: Apache-2.0 */
/* A client's cache, seen by one thread: what it answers by itself, what it refuses, what it gives back, and
 * what it shares. */

#include "tests/entries.h"
#include "tests/integration/cache_fixture.h"

#define ROUNDS 1000u

/* --- reuse --- */

static void reuse(unsigned kind) {
    static const uint64_t sizes[] = {1, 512, 4096, 100000, MIB, 3 * MIB + 5};
    struct gpupool_client *client = open_cached();
    uint64_t acquires = 0, releases = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t size = sizes[round % (sizeof sizes / sizeof *sizes)];
        struct gpupool_buffer buffer = acquire(client, kind, size, NULL);
        assert_int_equal(buffer.size_bytes, size);
        assert_int_equal(buffer.kind, kind);
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
        assert_null(buffer.data);
        if (round == 2 * sizeof sizes / sizeof *sizes) {
            acquires = daemon_sum(&daemon_, "acquires");
            releases = daemon_sum(&daemon_, "releases");
        }
    }
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_int_equal(daemon_sum(&daemon_, "releases"), releases);
    assert_true(daemon_sum(&daemon_, "leased_bytes") > 0);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void released_memory_is_taken_again_without_the_daemon(void **state) {
    (void)state;
    for_each_kind(reuse);
}

/* Above 16 KiB a thread keeps pieces of the size that it released last. The others join. */
static void join(unsigned kind) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer lower = acquire(client, kind, 32 * KIB, NULL);
    struct gpupool_buffer upper = acquire(client, kind, 48 * KIB, NULL);
    char *memory = lower.data;

    assert_ptr_equal(upper.data, memory + 32 * KIB);
    MUST(gpupool_release(client, &lower, stream_of(kind)));
    MUST(gpupool_release(client, &upper, stream_of(kind)));
    struct gpupool_buffer both = acquire(client, kind, 80 * KIB, NULL);
    assert_ptr_equal(both.data, memory);
    MUST(gpupool_release(client, &both, stream_of(kind)));
    close_cached(client);
}

static void neighbours_of_different_sizes_serve_a_larger_request(void **state) {
    (void)state;
    for_each_kind(join);
}

static void zero(unsigned kind) {
    const uint64_t size = 3 * MIB + 4096 + 8;
    struct gpupool_client *client = open_cached();

    struct gpupool_buffer buffer = acquire(client, kind, size, NULL);
    const void *data = buffer.data;
    MUST(puppet_write_pattern(client, &buffer, 99, NULL));
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    MUST(gpupool_acquire(client, pool_of(client, kind), size, NULL, GPUPOOL_NOW, GPUPOOL_ZERO, &buffer));
    assert_ptr_equal(buffer.data,
                     data); /* the very memory that was written: else the test would show nothing */
    assert_int_equal(puppet_read_pattern(client, &buffer, 0, NULL), 0);
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    close_cached(client);
}

static void zero_is_zero_after_reuse(void **state) {
    (void)state;
    for_each_kind(zero);
}

static void any_size(unsigned kind) {
    static const uint64_t sizes[] = {1,    2,    511,          512,     513, 4095,    4096,
                                     4097, 9999, 64 * KIB + 1, MIB - 1, MIB, MIB + 1, 5 * MIB + 3};
    const uint64_t limit = POOL_MIB * MIB;
    struct gpupool_client *client;
    struct gpupool_buffer buffer;

    empty_the_pools();
    client = open_cached();
    uint32_t pool = pool_of(client, kind);
    buffer = acquire(client, kind, limit, NULL);
    assert_int_equal(buffer.capacity_bytes, limit);
    MUST(puppet_write_pattern(client, &buffer, 5, NULL));
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        buffer = acquire(client, kind, sizes[i], NULL);
        MUST(puppet_write_pattern(client, &buffer, i + 1, NULL));
        assert_int_equal(puppet_read_pattern(client, &buffer, i + 1, NULL), 0);
        MUST(gpupool_release(client, &buffer, stream_of(kind)));
    }
    MUST_BE(gpupool_acquire(client, pool, limit + 1, NULL, GPUPOOL_FOREVER, 0, &buffer), GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_acquire(client, pool, UINT64_MAX, NULL, GPUPOOL_FOREVER, 0, &buffer),
            GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_acquire(client, pool, UINT64_C(1) << 56, NULL, GPUPOOL_FOREVER, 0, &buffer),
            GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_acquire(client, pool, 0, NULL, GPUPOOL_FOREVER, 0, &buffer), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_acquire(client, pool + 77, 1, NULL, GPUPOOL_FOREVER, 0, &buffer), GPUPOOL_E_NO_POOL);
    MUST_BE(gpupool_acquire(client, pool, 1, NULL, GPUPOOL_FOREVER, 0x80, &buffer), GPUPOOL_E_INVALID);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void any_size_up_to_the_pools_limit_is_served(void **state) {
    (void)state;
    for_each_kind(any_size);
}

static void query(unsigned kind) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer_info infos[2];
    struct gpupool_buffer buffers[2];

    for (unsigned i = 0; i < 2; i++) {
        buffers[i] = acquire(client, kind, 5000, NULL);
        MUST(gpupool_query(client, &buffers[i], &infos[i]));
        assert_memory_equal(&infos[i].buffer, &buffers[i], sizeof buffers[i]);
        assert_int_equal(infos[i].holders, 1);
        assert_int_equal(infos[i].shared, 0);
    }
    /* of one extent, and where they are in it */
    assert_int_equal(infos[0].segment, infos[1].segment);
    assert_true(infos[0].offset_bytes - infos[1].offset_bytes ==
                (uint64_t)((uintptr_t)buffers[0].data - (uintptr_t)buffers[1].data));
    for (unsigned i = 0; i < 2; i++)
        MUST(gpupool_release(client, &buffers[i], stream_of(kind)));
    close_cached(client);
}

static void a_query_says_where_in_its_segment_a_buffer_is(void **state) {
    (void)state;
    for_each_kind(query);
}

/* --- refusals --- */

static void stale(unsigned kind) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer_info info;
    struct gpupool_token token;

    struct gpupool_buffer buffer = acquire(client, kind, 4096, NULL), copy = buffer, again, other;
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    MUST_BE(gpupool_release(client, &buffer, stream_of(kind)), GPUPOOL_E_STALE);
    MUST_BE(gpupool_release(client, &copy, stream_of(kind)), GPUPOOL_E_STALE);
    /* taken again: the same memory under another generation */
    again = acquire(client, kind, 4096, NULL);
    assert_ptr_equal(again.data, copy.data);
    MUST_BE(gpupool_release(client, &copy, stream_of(kind)), GPUPOOL_E_STALE);
    MUST_BE(gpupool_release(client, &copy, GPUPOOL_NO_STREAM), GPUPOOL_E_STALE);
    MUST_BE(gpupool_shrink(client, &copy, 512, stream_of(kind)), GPUPOOL_E_STALE);
    MUST_BE(gpupool_query(client, &copy, &info), GPUPOOL_E_STALE);
    MUST_BE(gpupool_share(client, &copy, &token), GPUPOOL_E_STALE);
    /* none of that put it into the cache a second time */
    other = acquire(client, kind, 4096, NULL);
    assert_ptr_not_equal(other.data, again.data);
    copy = again;
    MUST(gpupool_release(client, &again, stream_of(kind)));
    MUST(gpupool_trim(client, NULL));
    MUST_BE(gpupool_release(client, &copy, stream_of(kind)), GPUPOOL_E_STALE); /* the memory itself is gone */
    MUST(gpupool_release(client, &other, stream_of(kind)));
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void releasing_twice_is_stale(void **state) {
    (void)state;
    for_each_kind(stale);
}

static void foreign(unsigned kind) {
    struct gpupool_client *clients[3] = {open_cached(), open_cached(), open_client(&daemon_, 0, 0)};
    struct gpupool_buffer_info info;
    struct gpupool_token token;

    struct gpupool_buffer own = acquire(clients[1], kind, 4096, NULL);
    struct gpupool_buffer buffer = acquire(clients[0], kind, 4096, NULL);
    MUST(gpupool_release(clients[1], &own, stream_of(kind))); /* so that its cache is in use */
    for (unsigned i = 1; i < 3; i++) {
        MUST_BE(gpupool_release(clients[i], &buffer, stream_of(kind)), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_shrink(clients[i], &buffer, 512, stream_of(kind)), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_query(clients[i], &buffer, &info), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_share(clients[i], &buffer, &token), GPUPOOL_E_INVALID);
    }
    MUST(gpupool_release(clients[0], &buffer, stream_of(kind)));
    gpupool_close(clients[2]);
    gpupool_close(clients[1]);
    close_cached(clients[0]);
}

static void a_buffer_of_another_client_is_refused(void **state) {
    (void)state;
    for_each_kind(foreign);
}

static void orphaned(unsigned kind) {
    struct gpupool_client *client = open_cached(), *other;
    struct gpupool_buffer_info info;

    struct gpupool_buffer stale = acquire(client, kind, 4096, NULL),
                          released = acquire(client, kind, 4096, NULL);
    struct gpupool_buffer copy = released, fresh[200];
    MUST(gpupool_release(client, &released, stream_of(kind)));
    gpupool_close(client);
    other = open_cached();
    for (unsigned i = 0; i < 200; i++) { /* what was the first client's bookkeeping is used again */
        fresh[i] = acquire(other, kind, 4096, NULL);
        assert_false(fresh[i].reserved[0] == stale.reserved[0] && fresh[i].generation == stale.generation);
    }
    released = copy;
    MUST_BE(gpupool_release(other, &stale, stream_of(kind)), GPUPOOL_E_STALE);
    MUST_BE(gpupool_release(other, &stale, GPUPOOL_NO_STREAM), GPUPOOL_E_STALE);
    MUST_BE(gpupool_shrink(other, &stale, 512, stream_of(kind)), GPUPOOL_E_STALE);
    MUST_BE(gpupool_query(other, &stale, &info), GPUPOOL_E_STALE);
    MUST_BE(gpupool_release(other, &released, stream_of(kind)), GPUPOOL_E_STALE);
    for (unsigned i = 0; i < 200; i++)
        MUST(gpupool_release(other, &fresh[i], stream_of(kind)));
    assert_true(stream_heaps_are_valid(other));
    close_cached(other);
}

static void a_buffer_of_a_closed_client_is_stale(void **state) {
    (void)state;
    for_each_kind(orphaned);
}

static void shrink(unsigned kind) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffer = acquire(client, kind, MIB, NULL), copy = buffer, tail;

    uint64_t acquires = daemon_sum(&daemon_, "acquires");
    MUST(puppet_write_pattern(client, &buffer, 7, NULL));
    MUST(gpupool_shrink(client, &buffer, 4000, stream_of(kind)));
    assert_int_equal(buffer.size_bytes, 4000);
    assert_int_equal(buffer.capacity_bytes, 4096);
    /* the tail serves at once */
    tail = acquire(client, kind, 512 * KIB, NULL);
    MUST(puppet_write_pattern(client, &tail, 8, NULL));
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_int_equal(puppet_read_pattern(client, &buffer, 7, NULL), 0);
    /* a copy from before cannot give away what the buffer does not have any more */
    MUST_BE(gpupool_shrink(client, &copy, 8192, stream_of(kind)), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_shrink(client, &copy, 4096, stream_of(kind)), GPUPOOL_E_INVALID);
    assert_int_equal(puppet_read_pattern(client, &tail, 8, NULL), 0);
    MUST_BE(gpupool_shrink(client, &buffer, 0, stream_of(kind)), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_shrink(client, &buffer, 4097, stream_of(kind)), GPUPOOL_E_INVALID);
    MUST(gpupool_shrink(client, &buffer, 4096, stream_of(kind))); /* nothing to give */
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    MUST(gpupool_release(client, &tail, stream_of(kind)));
    close_cached(client);
}

static void shrinking_gives_the_tail_to_the_next_buffer(void **state) {
    (void)state;
    for_each_kind(shrink);
}

/* --- giving back --- */

static void trim(unsigned kind) {
    struct gpupool_buffer parts[3];
    struct gpupool_client *client;
    uint64_t bytes = 1;

    empty_the_pools(); /* who is short of room has idle memory asked for, of this client too */
    client = open_cached();
    MUST(gpupool_trim(client, &bytes));
    assert_int_equal(bytes, 0);
    uint64_t acquires = 0;
    bool is_cut = false;
    /* The daemon may ask for what is idle whenever a pool was short of room lately: then another time. */
    for (unsigned attempt = 0; attempt < 5 && !is_cut; attempt++) {
        parts[0] = acquire(client, kind, 16 * MIB, NULL);
        MUST(gpupool_shrink(client, &parts[0], 4 * MIB, stream_of(kind)));
        acquires = daemon_sum(&daemon_, "acquires");
        for (unsigned i = 0; i < 3; i++) { /* the others are cut from its tail */
            if (i > 0)
                parts[i] = acquire(client, kind, 4 * MIB, NULL);
            MUST(puppet_write_pattern(client, &parts[i], i + 1, NULL));
        }
        is_cut = daemon_sum(&daemon_, "acquires") == acquires;
        for (unsigned i = 0; i < 3 && !is_cut; i++)
            MUST(gpupool_release(client, &parts[i], stream_of(kind)));
        if (!is_cut)
            MUST(gpupool_trim(client, NULL));
    }
    assert_true(is_cut);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 16 * MIB);
    MUST(gpupool_release(client, &parts[0], stream_of(kind)));
    MUST(gpupool_release(client, &parts[2], stream_of(kind)));
    MUST(gpupool_trim(client, &bytes)); /* parts of the extent */
    assert_int_equal(bytes, 12 * MIB);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 4 * MIB);
    assert_int_equal(puppet_read_pattern(client, &parts[1], 2, NULL), 0);
    MUST(gpupool_trim(client, &bytes));
    assert_int_equal(bytes, 0);
    /* what went back is taken anew, not from under somebody */
    parts[0] = acquire(client, kind, 8 * MIB, NULL);
    assert_true(daemon_sum(&daemon_, "acquires") > acquires);
    MUST(puppet_write_pattern(client, &parts[0], 9, NULL));
    assert_int_equal(puppet_read_pattern(client, &parts[1], 2, NULL), 0);
    MUST(gpupool_release(client, &parts[0], stream_of(kind)));
    MUST(gpupool_release(client, &parts[1], stream_of(kind)));
    MUST(gpupool_trim(client, &bytes));
    assert_int_equal(bytes, 12 * MIB);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void trim_gives_back_all_but_what_is_in_use(void **state) {
    (void)state;
    for_each_kind(trim);
}

static void decay(unsigned kind) {
    empty_the_pools();
    struct gpupool_client *client = open_client(&daemon_, 0, 50 * NS_PER_MS);
    struct gpupool_buffer whole = acquire(client, kind, 8 * MIB, NULL), held;
    MUST(gpupool_release(client, &whole, stream_of(kind)));
    held = acquire(client, kind, 2 * MIB, NULL);
    MUST(puppet_write_pattern(client, &held, 3, NULL));
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 2 * MIB);
    assert_int_equal(puppet_read_pattern(client, &held, 3, NULL), 0);
    MUST(gpupool_release(client, &held, stream_of(kind)));
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void idle_memory_goes_back_by_itself(void **state) {
    (void)state;
    for_each_kind(decay);
}

static void close_with_everything(unsigned kind) {
    struct gpupool_client *client = open_cached();

    for (unsigned i = 0; i < 40; i++) {
        struct gpupool_buffer buffer = acquire(client, kind, (i + 1) * 3000, NULL);
        if (i % 2 == 0)
            MUST(gpupool_release(client, &buffer, stream_of(kind)));
    }
    assert_true(daemon_sum(&daemon_, "leased_bytes") > 0);
    close_cached(client);
}

static void closing_leaves_no_thread_and_no_descriptor(void **state) {
    unsigned descriptors = 0, threads = 0, daemons = 0;

    (void)state;
    for (unsigned round = 0; round < 4; round++) {
        for_each_kind(close_with_everything);
        if (round == 0) { /* what the driver opens once for a process is open now */
            descriptors = count_entries("/proc/self/fd");
            threads = count_entries("/proc/self/task");
            empty_the_pools(); /* segments have descriptors, and how many there are depends on who is faster
                                */
            daemons = daemon_descriptors_at_rest(&daemon_);
        }
    }
    empty_the_pools();
    assert_int_equal(count_entries("/proc/self/fd"), descriptors);
    WAIT_UNTIL(count_entries("/proc/self/task") <=
               threads);                                 /* a joined thread's entry may outlive the join */
    WAIT_UNTIL(daemon_descriptors(&daemon_) <= daemons); /* it closes them a moment after the farewell */
}

static void closing_returns_what_is_cached_and_what_is_held(void **state) {
    (void)state;
    for_each_kind(close_with_everything);
}

/* --- messages --- */

/* What it costs to ask the daemon: the first of each stream heap, in a pool with room, and one that makes it
 * grow.
 */
static void a_miss_is_one_exchange_where_the_pool_has_room(void **state) {
    static const uint64_t sizes[] = {512, 100 * KIB, 3 * MIB, 12 * MIB};
    struct test_daemon daemon = {0};
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nreserve = 64MiB\nlow_water = 0\n"
                                                             "[host]\nreserve = 64MiB\nlow_water = 0\n"});
    for (unsigned i = 0; i < count; i++) {
        const char *name = puppet_kind_name(kinds[i]);
        WAIT_UNTIL(daemon_pool(&daemon, name, 0, "reserved_bytes") == 64 * MIB);
        for (unsigned j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            struct gpupool_client *client = open_client(&daemon, 0, GPUPOOL_FOREVER);
            uint32_t pool = pool_of(client, kinds[i]);
            struct gpupool_buffer buffer;
            uint64_t before = client->session.connection.last_id;

            MUST(gpupool_acquire(client, pool, sizes[j], NULL, GPUPOOL_FOREVER, 0, &buffer));
            assert_int_equal(client->session.connection.last_id - before, 1);
            gpupool_close(client);
        }
    }
    daemon_stop(&daemon);
}

/* Less than an extent should be is there: a part of that is lent, in the same exchange. */
static void a_miss_is_one_exchange_where_little_is_left(void **state) {
    struct test_daemon daemon = {0};
    struct gpupool_buffer most, buffer;

    (void)state;
    if (!test_has_devices(1))
        skip();
    daemon_start(&daemon, &(struct daemon_options){
                              .config = "[device]\nlimit = 64MiB\nreserve = 64MiB\nlow_water = 0\n"});
    WAIT_UNTIL(daemon_pool(&daemon, "device", 0, "reserved_bytes") == 64 * MIB);
    struct gpupool_client *holder = open_client(&daemon, GPUPOOL_OPEN_NO_CACHE, GPUPOOL_FOREVER);
    struct gpupool_client *client = open_client(&daemon, 0, GPUPOOL_FOREVER);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    MUST(gpupool_acquire(holder, pool, 64 * MIB - 20 * KIB, NULL, GPUPOOL_FOREVER, 0, &most));
    uint64_t before = client->session.connection.last_id;
    MUST(gpupool_acquire(client, pool, 512, NULL, GPUPOOL_FOREVER, 0, &buffer));
    assert_int_equal(client->session.connection.last_id - before, 1);
    MUST(gpupool_release(holder, &most, NULL));
    gpupool_close(client);
    gpupool_close(holder);
    daemon_stop(&daemon);
}

/* --- the limit --- */

/* Each buffer is larger than the one before, so that none fits where that one was: while the pool has room
 * nothing is closed for it, and what it grew to serves all of it again. */
static void while_the_pool_can_grow_nothing_is_closed(void **state) {
    struct test_daemon daemon = {0};
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    uint64_t grows = 0;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nstep = 2MiB\nlow_water = 0\n"});
    client = open_client(&daemon, 0, GPUPOOL_FOREVER);
    MUST(gpupool_stream_create(client, 0, &stream));
    for (unsigned pass = 0; pass < 3; pass++) {
        for (uint64_t size = 16 * MIB; size <= 128 * MIB; size += 16 * MIB) {
            buffer = acquire(client, GPUPOOL_POOL_DEVICE, size, stream);
            MUST(puppet_write_pattern(client, &buffer, (unsigned)(size / MIB), stream));
            assert_int_equal(puppet_read_pattern(client, &buffer, (unsigned)(size / MIB), stream), 0);
            MUST(gpupool_release(client, &buffer, stream));
        }
        assert_int_equal(daemon_pool(&daemon, "device", 0, "closes"), 0);
        assert_int_equal(daemon_pool(&daemon, "device", 0, "retires"), 0);
        assert_true(pass == 0 || daemon_pool(&daemon, "device", 0, "grows") == grows);
        grows = daemon_pool(&daemon, "device", 0, "grows");
    }
    MUST(gpupool_trim(client, NULL)); /* as ranges */
    assert_int_equal(daemon_sum(&daemon, "leased_bytes"), 0);
    assert_int_equal(daemon_pool(&daemon, "device", 0, "closes"), 0);
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    daemon_stop(&daemon);
}

static void own_idle_memory_is_given_up_before_exhausted_is_said(void **state) {
    const uint64_t large = 40 * MIB, smaller = 30 * MIB; /* no two of them fit */
    struct gpupool_buffer buffer, held;
    struct gpupool_client *client;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    client = open_cached_with_stream(&stream);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_DEVICE);
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, large, stream);
    MUST(gpupool_release(client, &buffer, stream));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), large);
    /* of another stream, in another size, and with no time given: as soon as the GPU is seen to be through
     * with it */
    WAIT_UNTIL(gpupool_acquire(client, pool, smaller, NULL, GPUPOOL_NOW, 0, &held) == 0);
    MUST(puppet_write_pattern(client, &held, 4, NULL));
    MUST_BE(gpupool_acquire(client, pool, large, stream, 20 * NS_PER_MS, 0, &buffer), GPUPOOL_E_EXHAUSTED);
    assert_non_null(strstr(gpupool_error_text(), "64 MiB")); /* the limit */
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), smaller);
    assert_int_equal(daemon_sum(&daemon_, "waiters"), 0);
    assert_int_equal(puppet_read_pattern(client, &held, 4, NULL), 0);
    MUST(gpupool_release(client, &held, NULL));
    MUST(gpupool_acquire(client, pool, large, stream, GPUPOOL_FOREVER, 0, &buffer));
    MUST(gpupool_release(client, &buffer, stream));
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, stream));
    close_cached(client);
}

/* Room beside a large buffer, too little to go back, serves small ones when there is no other. */
static void room_that_is_kept_for_other_sizes_is_used_before_exhausted_is_said(void **state) {
    struct gpupool_buffer large, small[4];
    struct gpupool_client *client;

    (void)state;
    empty_the_pools();
    client = open_cached();
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);
    large = acquire(client, GPUPOOL_POOL_HOST, POOL_MIB * MIB, NULL);
    MUST(gpupool_shrink(client, &large, (POOL_MIB - 1) * MIB, GPUPOOL_NO_STREAM));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), POOL_MIB * MIB); /* all that there is */
    for (unsigned i = 0; i < 4; i++)
        MUST(gpupool_acquire(client, pool, 200 * KIB, NULL, i % 2 ? GPUPOOL_NOW : GPUPOOL_FOREVER, 0,
                             &small[i]));
    assert_true(stream_heaps_are_valid(client));
    for (unsigned i = 0; i < 4; i++)
        MUST(gpupool_release(client, &small[i], GPUPOOL_NO_STREAM));
    MUST(gpupool_release(client, &large, GPUPOOL_NO_STREAM));
    close_cached(client);
}

static void a_waiting_miss_gets_what_another_process_releases(void **state) {
    const uint64_t large = 40 * MIB;
    struct puppet_command smaller = {.verb = PUPPET_SHRINK, .size = MIB};
    struct gpupool_client *client;
    struct puppet puppet;

    (void)state;
    empty_the_pools();
    puppet_connect(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_HOST, large, GPUPOOL_FOREVER, 0));
    client = open_cached();
    struct gpupool_buffer buffer;
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);
    MUST_BE(gpupool_acquire(client, pool, large, NULL, GPUPOOL_NOW, 0, &buffer), GPUPOOL_E_EXHAUSTED);
    puppet_send(&puppet, &smaller);
    MUST(gpupool_acquire(client, pool, 30 * MIB, NULL, GPUPOOL_FOREVER, 0, &buffer));
    PUPPET_MUST(&puppet, puppet_receive(&puppet));
    MUST(gpupool_release(client, &buffer, NULL));
    puppet_quit(&puppet);
    close_cached(client);
}

static void reclaim(unsigned kind) {
    const uint64_t large = 40 * MIB; /* no two of them fit */
    struct gpupool_client *client;
    struct gpupool_buffer buffer, held;
    struct puppet puppet;

    empty_the_pools();
    puppet_start(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_call(&puppet, &(struct puppet_command){.verb = PUPPET_OPEN, .flags = 0}));
    client = open_cached();
    buffer = acquire(client, kind, large, NULL);
    held = acquire(client, kind, 4 * MIB, NULL);
    MUST(puppet_write_pattern(client, &held, 61, NULL));
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    /* Each keeps what it released, until the other waits for it. A purger that was asked may get to it late,
     * and give back what was released since then: from then on there may be less. */
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), large + 4 * MIB);
    for (unsigned round = 0; round < 3; round++) {
        PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, kind, large, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, round + 1));
        assert_int_equal(puppet_read_pattern(client, &held, 61, NULL),
                         0); /* what is in use is nobody else's */
        PUPPET_MUST(&puppet, puppet_check(&puppet, 0, round + 1));
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
        assert_true(daemon_sum(&daemon_, "leased_bytes") <= large + 4 * MIB);
        buffer = acquire(client, kind, large, NULL);
        MUST(gpupool_release(client, &buffer, stream_of(kind)));
    }
    MUST(gpupool_release(client, &held, stream_of(kind)));
    puppet_quit(&puppet);
    close_cached(client);
}

static void idle_memory_of_one_is_had_by_another_that_waits(void **state) {
    (void)state;
    for_each_kind(reclaim);
}

/* However long it waits, and whatever goes back meanwhile: it asks once. */
static void keep_place(unsigned kind, unsigned flags) {
    const uint64_t large = 40 * MIB; /* no two of them fit */
    struct puppet holder, first, second, clock;

    empty_the_pools();
    puppet_connect(&holder, &daemon_);
    puppet_connect(&second, &daemon_);
    puppet_connect(&clock, &daemon_);
    puppet_start(&first, &daemon_);
    PUPPET_MUST(&first, puppet_call(&first, &(struct puppet_command){.verb = PUPPET_OPEN, .flags = flags}));
    PUPPET_MUST(&holder, puppet_acquire(&holder, 0, kind, large, GPUPOOL_FOREVER, 0));
    /* While a segment is made ahead of demand, or goes back to the driver, a request waits for that first.
     * Then it asks once more, and its place is the one of that time. */
    WAIT_UNTIL(daemon_sum(&daemon_, "growing_bytes") == 0 &&
               daemon_sum(&daemon_, "reserved_bytes") ==
                   daemon_sum(&daemon_, "leased_bytes") + daemon_sum(&daemon_, "free_bytes"));
    puppet_send_acquire(&first, 0, kind, large, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 1);
    puppet_send_acquire(&second, 0, kind, large, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 2);
    PUPPET_MUST_BE(&clock, puppet_acquire(&clock, 0, kind, large, 150 * NS_PER_MS, 0), GPUPOOL_E_EXHAUSTED);
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    PUPPET_MUST(&first, puppet_receive(&first));
    assert_false(puppet_has_answered(&second));
    puppet_quit(&first);
    PUPPET_MUST(&second, puppet_receive(&second));
    puppet_quit(&second);
    puppet_quit(&clock);
    puppet_quit(&holder);
}

static void who_waits_keeps_its_place_in_line(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    (void)state;
    for (unsigned i = 0; i < 2 * count; i++) /* the purger gives way, or who waits does */
        keep_place(kinds[i / 2], i % 2 == 0 ? 0 : GPUPOOL_OPEN_NO_THREAD);
}

/* In segments each of which is too small: what nobody uses goes back to where it came from. */
static void idle_segments(unsigned kind) {
    enum {
        COUNT = POOL_MIB / 8
    };
    struct gpupool_buffer buffers[COUNT];
    struct gpupool_client *client;
    struct puppet puppet;

    empty_the_pools();
    puppet_start(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_call(&puppet, &(struct puppet_command){.verb = PUPPET_OPEN, .flags = 0}));
    client = open_cached();
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < COUNT; i++)
            buffers[i] = acquire(client, kind, 8 * MIB, NULL);
        for (unsigned i = 0; i < COUNT; i++)
            MUST(gpupool_release(client, &buffers[i], stream_of(kind)));
        PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, kind, (POOL_MIB - 8) * MIB, TEST_WAIT_NS / 4, 0));
        PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, round + 1));
        PUPPET_MUST(&puppet, puppet_check(&puppet, 0, round + 1));
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    }
    puppet_quit(&puppet);
    close_cached(client);
}

static void idle_segments_of_one_make_room_for_another_that_waits(void **state) {
    (void)state;
    for_each_kind(idle_segments);
}

/* More than one message names. */
static void any_number_of_idle_segments_is_closed(void **state) {
    enum {
        COUNT = 150,
        SIZE_MIB = 10 /* of which each has a segment to itself */
    };
    static const char *const arguments[] = {"--sim-memory", "3GiB", NULL};
    struct gpupool_buffer buffers[COUNT], large;
    struct test_daemon daemon = {0};
    struct gpupool_client *client;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nlimit = 2GiB\nlow_water = 0\n",
                                                   .arguments = test_is_simulated() ? arguments : NULL});
    client = open_client(&daemon, 0, GPUPOOL_FOREVER);
    MUST(gpupool_stream_create(client, 0, &stream));
    for (unsigned i = 0; i < COUNT; i++)
        buffers[i] = acquire(client, GPUPOOL_POOL_DEVICE, SIZE_MIB * MIB, stream);
    assert_true(daemon_pool(&daemon, "device", 0, "segments") > 2 * PROTO_CLOSE_MAX);
    for (unsigned i = 0; i < COUNT; i++)
        MUST(gpupool_release(client, &buffers[i], stream));
    MUST(gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), 2040 * MIB, stream, TEST_WAIT_NS / 4,
                         0, &large));
    MUST(gpupool_release(client, &large, stream));
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    daemon_stop(&daemon);
}

/* --- sharing --- */

static void share(unsigned kind, uint64_t size, bool owner_first) {
    struct gpupool_client *client = open_cached();
    struct gpupool_token token, same;
    struct gpupool_buffer_info info;
    struct puppet puppet;

    puppet_connect(&puppet, &daemon_);
    struct gpupool_buffer shared = acquire(client, kind, size, NULL),
                          neighbour = acquire(client, kind, size, NULL), copy;
    MUST(puppet_write_pattern(client, &shared, 1, NULL));
    MUST(puppet_write_pattern(client, &neighbour, 2, NULL));
    MUST(gpupool_share(client, &shared, &token));
    MUST(gpupool_share(client, &shared, &same));
    assert_memory_equal(&token, &same, sizeof token);
    PUPPET_MUST(&puppet, puppet_attach(&puppet, 0, &token));
    assert_true(puppet.answer.buffer.capacity_bytes >= size);
    assert_true(puppet.answer.buffer.capacity_bytes <= shared.capacity_bytes);
    MUST(gpupool_query(client, &shared, &info));
    assert_int_equal(info.holders, 2);
    assert_int_equal(info.shared, 1);
    MUST(gpupool_query(client, &neighbour, &info)); /* not more than was shared */
    assert_int_equal(info.holders, 1);
    assert_int_equal(info.shared, 0);
    if (size % 8 == 0 && puppet.answer.buffer.size_bytes == size)
        PUPPET_MUST(&puppet, puppet_check(&puppet, 0, 1));
    PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, 3)); /* all of what it was given */
    assert_int_equal(puppet_read_pattern(client, &shared, 3, NULL), 0);
    assert_int_equal(puppet_read_pattern(client, &neighbour, 2, NULL), 0);
    MUST_BE(gpupool_shrink(client, &shared, 512, stream_of(kind)), GPUPOOL_E_SHARED);
    copy = shared;
    if (owner_first) {
        MUST(gpupool_release(client, &shared, stream_of(kind)));
        MUST_BE(gpupool_release(client, &copy, stream_of(kind)), GPUPOOL_E_STALE);
        MUST_BE(gpupool_share(client, &copy, &same), GPUPOOL_E_STALE);
        MUST(gpupool_trim(client, NULL));
        /* nothing that this process takes now is the puppet's */
        struct gpupool_buffer fresh = acquire(client, kind, size, NULL);
        MUST(puppet_write_pattern(client, &fresh, 6, NULL));
        PUPPET_MUST(&puppet, puppet_check(&puppet, 0, 3));
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
        MUST(gpupool_release(client, &fresh, stream_of(kind)));
    } else {
        PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
        assert_int_equal(puppet_read_pattern(client, &shared, 3, NULL), 0);
        MUST(gpupool_release(client, &shared, stream_of(kind)));
        MUST_BE(gpupool_release(client, &copy, stream_of(kind)), GPUPOOL_E_STALE);
    }
    PUPPET_MUST_BE(&puppet, puppet_attach(&puppet, 1, &token), GPUPOOL_E_NO_TOKEN);
    assert_int_equal(puppet_read_pattern(client, &neighbour, 2, NULL), 0);
    MUST(gpupool_release(client, &neighbour, stream_of(kind)));
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_trim(client, NULL));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0); /* when the stream has passed the fence */
    puppet_quit(&puppet);
    close_cached(client);
}

static void share_in_both_orders(unsigned kind) {
    static const uint64_t sizes[] = {1000, 64 * KIB, 6 * MIB}; /* the last one is all of its extent */
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        share(kind, sizes[i], true);
        share(kind, sizes[i], false);
    }
}

static void a_shared_buffer_is_the_others_too_and_its_neighbours_are_not(void **state) {
    (void)state;
    for_each_kind(share_in_both_orders);
}

static void attach(unsigned kind) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffer, copy;
    struct gpupool_token token;
    struct puppet puppet;

    puppet_connect(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, kind, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, 11));
    PUPPET_MUST(&puppet, puppet_share(&puppet, 0, &token));
    MUST(gpupool_attach(client, &token, &buffer));
    assert_int_equal(puppet_read_pattern(client, &buffer, 11, NULL), 0);
    PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    copy = buffer;
    MUST(gpupool_release(client, &buffer, stream_of(kind))); /* it was never this cache's, and is not kept */
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    MUST_BE(gpupool_release(client, &copy, stream_of(kind)), GPUPOOL_E_STALE);
    puppet_quit(&puppet);
    close_cached(client);
}

static void an_attached_buffer_goes_back_to_the_daemon(void **state) {
    (void)state;
    for_each_kind(attach);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_memory_is_taken_again_without_the_daemon),
        cmocka_unit_test(neighbours_of_different_sizes_serve_a_larger_request),
        cmocka_unit_test(zero_is_zero_after_reuse),
        cmocka_unit_test(any_size_up_to_the_pools_limit_is_served),
        cmocka_unit_test(a_query_says_where_in_its_segment_a_buffer_is),
        cmocka_unit_test(releasing_twice_is_stale),
        cmocka_unit_test(a_buffer_of_another_client_is_refused),
        cmocka_unit_test(a_buffer_of_a_closed_client_is_stale),
        cmocka_unit_test(shrinking_gives_the_tail_to_the_next_buffer),
        cmocka_unit_test(trim_gives_back_all_but_what_is_in_use),
        cmocka_unit_test(idle_memory_goes_back_by_itself),
        cmocka_unit_test(closing_returns_what_is_cached_and_what_is_held),
        cmocka_unit_test(a_miss_is_one_exchange_where_the_pool_has_room),
        cmocka_unit_test(a_miss_is_one_exchange_where_little_is_left),
        cmocka_unit_test(while_the_pool_can_grow_nothing_is_closed),
        cmocka_unit_test(own_idle_memory_is_given_up_before_exhausted_is_said),
        cmocka_unit_test(room_that_is_kept_for_other_sizes_is_used_before_exhausted_is_said),
        cmocka_unit_test(a_waiting_miss_gets_what_another_process_releases),
        cmocka_unit_test(closing_leaves_no_thread_and_no_descriptor),
        cmocka_unit_test(idle_memory_of_one_is_had_by_another_that_waits),
        cmocka_unit_test(who_waits_keeps_its_place_in_line),
        cmocka_unit_test(idle_segments_of_one_make_room_for_another_that_waits),
        cmocka_unit_test(any_number_of_idle_segments_is_closed),
        cmocka_unit_test(a_shared_buffer_is_the_others_too_and_its_neighbours_are_not),
        cmocka_unit_test(an_attached_buffer_goes_back_to_the_daemon),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
