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
    MUST_BE(gpupool_share(client, &copy, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_STALE);
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
        MUST_BE(gpupool_share(clients[i], &buffer, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_INVALID);
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

/* --- sharing --- */

/* The release of a shared buffer is not answered: after an exchange the daemon has read it. */
static void let_the_daemon_hear(struct gpupool_client *client) {
    size_t count;
    MUST(gpupool_pools(client, NULL, 0, &count));
}

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
    MUST(gpupool_share(client, &shared, GPUPOOL_NO_STREAM, &token));
    MUST(gpupool_share(client, &shared, GPUPOOL_NO_STREAM, &same));
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
        MUST_BE(gpupool_share(client, &copy, GPUPOOL_NO_STREAM, &same), GPUPOOL_E_STALE);
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
    let_the_daemon_hear(client);
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
    MUST(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &buffer));
    assert_int_equal(puppet_read_pattern(client, &buffer, 11, NULL), 0);
    PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    copy = buffer;
    MUST(gpupool_release(client, &buffer, stream_of(kind))); /* it was never this cache's, and is not kept */
    let_the_daemon_hear(client);
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
        cmocka_unit_test(closing_leaves_no_thread_and_no_descriptor),
        cmocka_unit_test(a_shared_buffer_is_the_others_too_and_its_neighbours_are_not),
        cmocka_unit_test(an_attached_buffer_goes_back_to_the_daemon),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
