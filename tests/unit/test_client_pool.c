/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a pool as a client has it: the queue of its requests, the gates of its stream heaps, and what a
 * release serves. The memory that the stream heaps deal in does not exist.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "client/core/deferred.h"
#include "client/core/pool.h"
#include "client/include/gpupool/gpupool.h"
#include "proto/page.h"
#include "stream_heap_fixture.h"
#include "tests/bounded.h"

#define EXTENT_BYTES (8 * MIB)
#define NOW_NS       UINT64_C(1000000000)
#define LATER_NS     (NOW_NS + UINT64_C(1000000000))
#define THREADS      4u
#define ROUNDS       200u

static struct core_pool pool;
static struct stream_heap *heaps[2];

static struct stream_heap *add_heap(void) {
    struct stream_heap *stream_heap = make_stream_heap();

    core_pool_add_locked(&pool, stream_heap);
    return stream_heap;
}

static int set_up(void **state) {
    (void)state;
    core_pool_init(&pool);
    for (unsigned i = 0; i < 2; i++) {
        heaps[i] = add_heap();
        assert_int_equal(stream_heap_add_extent(heaps[i], i + 1, EXTENT_BYTES), 0);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    assert_true(core_pool_is_valid(&pool));
    for (unsigned i = 0; i < 2; i++)
        stream_heap_free(heaps[i]);
    core_pool_deinit(&pool);
    return 0;
}

static bool gate_is_closed(struct stream_heap *stream_heap) {
    bool is_closed = core_pool_lock_heap(stream_heap);
    core_pool_unlock_heap(stream_heap, is_closed);
    assert_true(core_pool_is_valid(&pool));
    return is_closed;
}

static void enter(struct acquire *waiter, uint64_t size_bytes) {
    core_pool_enter_locked(&pool, waiter, NULL, size_bytes, false);
}

/* Takes what serves a request. Returns how many bytes; 0: none is served. */
static uint64_t serve(struct stream_heap *stream_heap, uint64_t now_ns) {
    struct core_serving serving;

    if (!core_pool_serve_locked(&pool, stream_heap, now_ns, &serving))
        return 0;
    uint64_t bytes = serving.piece->capacity_bytes;
    stream_heap_give(serving.piece);
    return bytes;
}

static void gates_are_closed_while_a_request_waits(void **state) {
    struct acquire first, second;

    (void)state;
    assert_false(gate_is_closed(heaps[0]));
    enter(&first, MIB);
    enter(&second, MIB);
    assert_true(gate_is_closed(heaps[0]));
    assert_true(gate_is_closed(heaps[1]));
    struct stream_heap *added = add_heap(); /* by a thread with a new stream */
    assert_true(gate_is_closed(added));
    core_pool_leave_locked(&pool, &first);
    assert_true(gate_is_closed(heaps[0]));
    core_pool_leave_locked(&pool, &second);
    for (unsigned i = 0; i < 2; i++)
        assert_false(gate_is_closed(heaps[i]));
    assert_false(gate_is_closed(added));
    list_remove(&added->pool_link);
    stream_heap_free(added);
}

static void the_first_request_that_fits_is_served(void **state) {
    struct acquire first, second, third;
    struct piece *piece;

    (void)state;
    assert_int_equal(stream_heap_take(heaps[0], 6 * MIB, &piece), 0);
    enter(&first, 4 * MIB);
    enter(&second, 2 * MIB);
    enter(&third, MIB);
    assert_int_equal(serve(heaps[0], NOW_NS), 2 * MIB);
    stream_heap_give(piece); /* now the first one fits, too */
    assert_int_equal(serve(heaps[0], NOW_NS), 4 * MIB);
    assert_int_equal(serve(heaps[0], NOW_NS), MIB);
    assert_int_equal(serve(heaps[0], NOW_NS), 0); /* each has been offered a range */
    assert_int_equal(serve(heaps[1], NOW_NS), 0);
    assert_int_equal(serve(heaps[0], LATER_NS), 4 * MIB); /* which went to another process */
    core_pool_leave_locked(&pool, &first);
    core_pool_leave_locked(&pool, &second);
    core_pool_leave_locked(&pool, &third);
}

/* A request that leaves without an offer of its own may have had what was meant for another one. */
static void a_request_whose_range_served_another_is_offered_one_again(void **state) {
    struct acquire first, second;

    (void)state;
    enter(&first, 2 * EXTENT_BYTES); /* longer than any range here */
    enter(&second, MIB);
    assert_int_equal(serve(heaps[0], NOW_NS), MIB);
    assert_int_equal(serve(heaps[0], NOW_NS), 0);
    core_pool_leave_locked(&pool, &first);
    assert_int_equal(serve(heaps[0], NOW_NS), MIB);
    core_pool_leave_locked(&pool, &second);
}

static struct proto_page page; /* its words are the test's own */
static const struct fence_array fences = {.words = page.fences};

static void deferred_memory_serves_when_its_fence_is_ready(void **state) {
    const struct fence fence = {1, 1};
    struct acquire waiter;
    struct piece *piece;

    (void)state;
    heaps[0]->fences = &fences;
    assert_int_equal(stream_heap_take(heaps[0], EXTENT_BYTES, &piece), 0);
    assert_int_equal(deferred_reserve_locked(heaps[0], fence), 0);
    deferred_push_locked(heaps[0], piece, fence);
    enter(&waiter, MIB);
    assert_int_equal(serve(heaps[0], NOW_NS), 0);
    atomic_store(&page.fences[0], 1);
    assert_int_equal(serve(heaps[0], NOW_NS), MIB);
    core_pool_leave_locked(&pool, &waiter);
}

static void requests_are_told_apart_by_what_they_wait_for(void **state) {
    struct acquire range, segments;

    (void)state;
    assert_false(core_pool_waits(&pool));
    core_pool_enter_locked(&pool, &segments, NULL, 4 * MIB, true);
    assert_true(core_pool_waits_for_segments_locked(&pool));
    enter(&range, 2 * MIB);
    assert_false(core_pool_waits_for_locked(&pool, MIB));
    assert_true(core_pool_waits_for_locked(&pool, 2 * MIB));
    core_pool_leave_locked(&pool, &segments);
    assert_false(core_pool_waits_for_segments_locked(&pool));
    assert_true(core_pool_waits(&pool));
    core_pool_leave_locked(&pool, &range);
    assert_false(core_pool_waits(&pool));
}

/* A request for segments of the stream heap gets the range itself, and its question is cancelled. */
static void a_request_for_segments_is_served_in_its_own_stream_heap(void **state) {
    struct core_serving serving;
    struct acquire own, other;

    (void)state;
    core_pool_enter_locked(&pool, &own, heaps[0], 4 * MIB, true);
    core_pool_enter_locked(&pool, &other, heaps[0], 2 * MIB, false);
    own.question_id = 7;
    assert_true(core_pool_serve_locked(&pool, heaps[0], NOW_NS, &serving));
    assert_null(serving.piece);
    assert_int_equal(serving.question_id, 7);
    assert_non_null(own.piece);
    assert_int_equal(own.piece->capacity_bytes, 4 * MIB);
    /* It needs no more: the next one has its turn, and passes count for that. */
    assert_false(core_pool_waits_for_segments_locked(&pool));
    target_note_pass_locked(&pool);
    assert_int_equal(own.passes, 0);
    assert_int_equal(other.passes, 1);
    assert_int_equal(serve(heaps[0], NOW_NS), 2 * MIB); /* by the daemon */
    core_pool_leave_locked(&pool, &other);
    core_pool_leave_locked(&pool, &own);
    stream_heap_give(own.piece);
    assert_true(core_pool_is_valid(&pool));
}

/* Memory of another stream heap is no segment for a request of an arena. */
static void a_range_serves_a_request_for_segments_in_its_own_stream_heap_alone(void **state) {
    struct core_serving serving;
    struct acquire segments;

    (void)state;
    core_pool_enter_locked(&pool, &segments, heaps[0], 4 * MIB, true);
    assert_false(core_pool_serve_locked(&pool, heaps[1], NOW_NS, &serving));
    assert_true(core_pool_serve_locked(&pool, heaps[0], NOW_NS, &serving));
    assert_null(serving.piece);
    assert_int_equal(serving.question_id, 0); /* the daemon has not been asked yet */
    core_pool_leave_locked(&pool, &segments);
    stream_heap_give(segments.piece);
}

/* --- threads --- */

static atomic_uint served;
static atomic_bool stops;

/* Takes and gives as a cache's slow path does. */
static void *take_and_give(void *argument) {
    struct stream_heap *stream_heap = argument;

    while (!atomic_load(&stops)) {
        struct core_serving serving;
        struct piece *piece = NULL;
        bool is_closed = core_pool_lock_heap(stream_heap);
        if (stream_heap_take_locked(stream_heap, MIB, true, &piece) == 0 && is_closed)
            target_note_pass_locked(&pool);
        core_pool_unlock_heap(stream_heap, is_closed);
        if (piece == NULL)
            continue;
        is_closed = core_pool_lock_heap(stream_heap);
        stream_heap_give_locked(stream_heap, piece);
        bool any = is_closed && core_pool_serve_locked(&pool, stream_heap, NOW_NS, &serving);
        core_pool_unlock_heap(stream_heap, is_closed);
        if (!any)
            continue;
        stream_heap_give(serving.piece);
        atomic_fetch_add(&served, 1);
    }
    return NULL;
}

/* Each release beside a request that waits serves it, so the request does not wait for anything else. */
static void requests_come_and_go_beside_threads_that_take(void **state) {
    pthread_t threads[THREADS];

    (void)state;
    atomic_store(&served, 0);
    atomic_store(&stops, false);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, heaps[i % 2]), 0);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct acquire waiter;
        pthread_mutex_lock(&pool.lock);
        enter(&waiter, 4 * MIB);
        pthread_mutex_unlock(&pool.lock);
        WAIT_UNTIL(atomic_load(&served) == i + 1);
        assert_true(core_pool_is_valid(&pool));
        pthread_mutex_lock(&pool.lock);
        core_pool_leave_locked(&pool, &waiter);
        pthread_mutex_unlock(&pool.lock);
    }
    atomic_store(&stops, true);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(atomic_load(&served), ROUNDS);
    assert_true(core_pool_is_valid(&pool));
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(stream_heap_free_bytes_locked(heaps[i]), EXTENT_BYTES);
}

#define POOL_TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        POOL_TEST(gates_are_closed_while_a_request_waits),
        POOL_TEST(the_first_request_that_fits_is_served),
        POOL_TEST(a_request_whose_range_served_another_is_offered_one_again),
        POOL_TEST(deferred_memory_serves_when_its_fence_is_ready),
        POOL_TEST(requests_are_told_apart_by_what_they_wait_for),
        POOL_TEST(a_request_for_segments_is_served_in_its_own_stream_heap),
        POOL_TEST(a_range_serves_a_request_for_segments_in_its_own_stream_heap_alone),
        POOL_TEST(requests_come_and_go_beside_threads_that_take),
    };
    return cmocka_run_group_tests_name("a client's pool", tests, NULL, NULL);
}
