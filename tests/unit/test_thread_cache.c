/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of thread caches: each piece is in one place, whichever thread reaches into a cache. Every test runs
 * with both locks, the asymmetric one and the mutex, where the process has both. Clients are only compared
 * here, so any address will do for one. Pieces name real memory, whose words name the owner.
 */
#include <errno.h>
#include <linux/membarrier.h>
#include <stdatomic.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "cached.h"
#include "client/cache/cache.h"
#include "heap_fixture.h"

#define POOL         5u
#define OWNERS       3u
#define ROUNDS       15000u          /* at least, */
#define VISITS       300u            /* and until so many visits were paid, */
#define WAIT_NS      (60 * NS_PER_S) /* but not for ever */
#define HELD         24u
#define EXTENT_BYTES (4 * MIB)

/* As the process has it. */
static bool has_to_lock;

/* A client as the caches see it: an address, its caches, and here one stream heap over real memory. */
struct false_client {
    struct list caches;
    struct stream_heap *stream_heap;
    struct depot depot;
    char *memory;
};

static struct cache *address_of(struct false_client *client) {
    return (struct cache *)(void *)client;
}

static void client_init(struct false_client *client) {
    list_init(&client->caches);
    client->stream_heap = stream_heap_new(
        address_of(client), &(struct pool_facts){.id = POOL, .kind = GPUPOOL_POOL_HOST, .device = -1},
        GPUPOOL_NO_STREAM);
    client->memory = calloc(1, EXTENT_BYTES);
    assert_non_null(client->stream_heap);
    assert_non_null(client->memory);
    depot_init(&client->depot);
    client->stream_heap->depot = &client->depot;
    pthread_mutex_lock(&client->stream_heap->lock);
    assert_int_equal(stream_heap_add_extent_locked(client->stream_heap, STREAM_HEAP_SMALL,
                                                   &(struct segment_view){0}, 1, 1, client->memory,
                                                   EXTENT_BYTES),
                     0);
    pthread_mutex_unlock(&client->stream_heap->lock);
}

static void client_deinit(struct false_client *client) {
    thread_caches_detach(&client->caches);
    assert_true(list_is_empty(&client->caches));
    depot_deinit(&client->depot);
    stream_heap_free(client->stream_heap);
    free(client->memory);
}

static void flush_depot(struct false_client *client, bool idle_only) {
    pthread_mutex_lock(&client->stream_heap->lock);
    depot_flush_locked(client->stream_heap, idle_only);
    pthread_mutex_unlock(&client->stream_heap->lock);
}

static bool everything_is_back(struct false_client *client) {
    flush_depot(client, false);
    return stream_heap_is_valid(client->stream_heap) &&
           stream_heap_free_bytes(client->stream_heap) == EXTENT_BYTES;
}

static void client_end(struct false_client *client) {
    assert_true(everything_is_back(client));
    client_deinit(client);
}

static void flush_own_cache(void) {
    thread_cache_enter(client_thread()->caches);
    thread_cache_flush(client_thread()->caches, NULL, false);
    thread_cache_leave(client_thread()->caches);
}

/* Where the owner has to take the mutex there is no fast way, but for ThreadSanitizer's sake. */
static bool has_fast_way(void) {
    return !thread_cache_locks || !THREAD_CACHE_KNOWS_MEMBARRIER;
}

/* Goes in, to leave with thread_cache_leave. */
static struct thread_bins *enter(struct false_client *client, struct thread_cache *cache) {
    thread_cache_enter(cache);
    struct thread_bins *own = thread_cache_find(cache, client->stream_heap);
    if (own == NULL)
        own = thread_cache_add(cache, client->stream_heap);
    if (own != NULL) {
        own->touched = true;
        cache->last = own;
    }
    return own;
}

/* As the client library takes and puts: the fast way, then the slow one. False: nothing there (or wrong). */
static bool buffer_take(struct false_client *client, uint64_t size_bytes, struct gpupool_buffer *ret_buffer) {
    struct piece *piece = NULL;

    if (cache_take_fast(address_of(client), POOL, size_bytes, NULL, ret_buffer))
        return true;
    struct thread_cache *cache = thread_cache_get(address_of(client), &client->caches);
    if (cache == NULL)
        return false;
    if (cache_take_fast(address_of(client), POOL, size_bytes, NULL, ret_buffer)) /* it is in front now */
        return true;
    struct thread_bins *own = enter(client, cache);
    if (own != NULL) {
        unsigned size_class = size_class_of(size_bytes);
        piece = thread_bins_take(own, size_class, size_bytes);
        pthread_mutex_lock(&client->stream_heap->lock);
        if (piece == NULL &&
            stream_heap_take_locked(client->stream_heap, size_class_round(size_bytes), true, &piece) < 0)
            piece = NULL;
        pthread_mutex_unlock(&client->stream_heap->lock);
    }
    thread_cache_leave(cache);
    if (piece == NULL)
        return false;
    cache_fill(ret_buffer, piece, size_bytes);
    return true;
}

static void buffer_put(struct false_client *client, struct gpupool_buffer *buffer) {
    struct piece *piece = cache_piece(buffer);

    *buffer = (struct gpupool_buffer){0};
    if (cache_put_fast(address_of(client), piece))
        return;
    piece->generation++;
    struct thread_cache *cache = thread_cache_get(address_of(client), &client->caches);
    struct thread_bins *own = cache != NULL ? enter(client, cache) : NULL;
    if (own != NULL)
        thread_bins_put(own, piece->size_class, piece);
    if (cache != NULL)
        thread_cache_leave(cache);
    if (own != NULL)
        return;
    pthread_mutex_lock(&piece->stream_heap->lock);
    stream_heap_give_locked(piece->stream_heap, piece);
    pthread_mutex_unlock(&piece->stream_heap->lock);
}

/* Changes the mark at both ends of the memory. Returns false when one was not the expected mark. */
static bool mark(const struct gpupool_buffer *buffer, uint32_t from, uint32_t to) {
    _Atomic uint32_t *first = buffer->data;
    _Atomic uint32_t *last =
        (_Atomic uint32_t *)(void *)((char *)buffer->data + buffer->capacity_bytes - sizeof *last);
    return atomic_exchange(first, to) == from && atomic_exchange(last, to) == from;
}

/* --- owners and visitors --- */

struct owner {
    struct false_client *client;
    uint32_t number;
    const _Atomic uint64_t *visits;
    bool wrong; /* a piece was in two places */
    uint64_t hits;
};

/* Whether an owner goes on. */
static bool wants_more(const struct owner *owner, unsigned round, uint64_t end_ns) {
    return !owner->wrong &&
           (round < ROUNDS || (atomic_load(owner->visits) < VISITS && clock_now_ns() < end_ns));
}

static void *owner_main(void *argument) {
    struct owner *owner = argument;
    struct gpupool_buffer held[HELD] = {0};
    uint64_t random = owner->number * UINT64_C(0x9e3779b97f4a7c15);

    uint64_t end_ns = clock_now_ns() + WAIT_NS;

    for (unsigned round = 0; wants_more(owner, round, end_ns); round++) {
        random = random * UINT64_C(6364136223846793005) + 1;
        struct gpupool_buffer *buffer = &held[(random >> 33) % HELD];
        uint64_t generation = buffer->generation;
        if (buffer->data == NULL) {
            if (buffer_take(owner->client, (random >> 40) % 9000 + 1, buffer))
                owner->wrong = !mark(buffer, 0, owner->number) || buffer->generation % 2 == 0;
            continue;
        }
        owner->wrong = !mark(buffer, owner->number, 0) || cache_piece(buffer)->generation != generation;
        buffer_put(owner->client, buffer);
    }
    for (unsigned i = 0; i < HELD; i++)
        if (held[i].data != NULL) {
            owner->wrong = owner->wrong || !mark(&held[i], owner->number, 0);
            buffer_put(owner->client, &held[i]);
        }
    owner->hits = client_thread()->caches != NULL ? client_thread()->caches->last->counters->hits : 0;
    return NULL;
}

struct visitor {
    struct false_client *client;
    atomic_bool *stop;
    _Atomic uint64_t *visits;
};

static void visit_all(struct false_client *client, bool idle_only, _Atomic uint64_t *visits) {
    thread_caches_lock();
    list_for_each_entry(struct thread_cache, cache, &client->caches, link) {
        thread_cache_visit(cache);
        thread_cache_flush(cache, NULL, idle_only);
        thread_cache_part(cache);
        atomic_fetch_add(visits, 1);
    }
    thread_caches_unlock();
    flush_depot(client, idle_only);
}

static void *visitor_main(void *argument) {
    struct visitor *visitor = argument;

    for (uint64_t i = 0; !atomic_load(visitor->stop); i++) {
        visit_all(visitor->client, i % 4 != 0, visitor->visits);
        sched_yield(); /* the registry's lock is not fair: threads that end need it too */
    }
    return NULL;
}

static void hammer(unsigned owners, unsigned visitors) {
    struct owner owner[OWNERS] = {0};
    struct visitor visitor[2] = {0};
    pthread_t owner_threads[OWNERS], visitor_threads[2];
    atomic_bool stop = false;
    struct false_client client;
    _Atomic uint64_t visits = 0;
    uint64_t hits = 0;

    client_init(&client);
    for (unsigned i = 0; i < visitors; i++) {
        visitor[i] = (struct visitor){.client = &client, .stop = &stop, .visits = &visits};
        assert_int_equal(pthread_create(&visitor_threads[i], NULL, visitor_main, &visitor[i]), 0);
    }
    for (unsigned i = 0; i < owners; i++) {
        owner[i] = (struct owner){.client = &client, .number = i + 1, .visits = &visits};
        assert_int_equal(pthread_create(&owner_threads[i], NULL, owner_main, &owner[i]), 0);
    }
    for (unsigned i = 0; i < owners; i++) {
        TEST_JOIN(owner_threads[i], NULL);
        assert_false(owner[i].wrong);
        hits += owner[i].hits;
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < visitors; i++)
        TEST_JOIN(visitor_threads[i], NULL);
    assert_int_equal(hits > 0, has_fast_way());
    assert_true(visits >= VISITS);
    assert_true(everything_is_back(&client)); /* the owners have ended */
    assert_true(list_is_empty(&client.caches));
    client_deinit(&client);
}

static void an_owner_and_a_visitor_never_have_the_same_piece(void **state) {
    (void)state;
    hammer(1, 1);
}

static void several_owners_and_visitors_never_have_the_same_piece(void **state) {
    (void)state;
    hammer(OWNERS, 2);
}

/* --- ends --- */

static void *take_and_leave(void *argument) {
    struct false_client *client = argument;
    struct gpupool_buffer buffers[HELD];

    for (unsigned i = 0; i < HELD; i++)
        if (!buffer_take(client, 4096, &buffers[i]))
            return argument;
    for (unsigned i = 0; i < HELD; i++)
        buffer_put(client, &buffers[i]);
    return stream_heap_free_bytes(client->stream_heap) == EXTENT_BYTES - HELD * 4096
               ? NULL
               : argument; /* all cached */
}

static void a_threads_end_gives_its_pieces_back(void **state) {
    struct false_client client;

    (void)state;
    client_init(&client);
    assert_null(RUN_IN_THREAD(take_and_leave, &client));
    assert_true(everything_is_back(&client));
    assert_true(list_is_empty(&client.caches));
    client_deinit(&client);
}

static void *use_two_clients(void *argument) {
    struct false_client *clients = argument;
    struct gpupool_buffer buffers[2];

    for (unsigned round = 0; round < 100; round++) {
        for (unsigned i = 0; i < 2; i++) {
            if (!buffer_take(&clients[i], 512, &buffers[i]))
                return argument;
            if (client_thread()->caches->owner != address_of(&clients[i]) ||
                cache_piece(&buffers[i])->stream_heap != clients[i].stream_heap)
                return argument;
        }
        /* not in front any more: the fast way must not take it for the other's */
        if (cache_put_fast(address_of(&clients[0]), cache_piece(&buffers[0])) ||
            cache_put_fast(address_of(&clients[1]), cache_piece(&buffers[0])))
            return argument;
        buffer_put(&clients[1], &buffers[1]);
        thread_cache_get(address_of(&clients[0]), &clients[0].caches);
        if (round == 0 || !has_fast_way()) /* there is no magazine yet */
            buffer_put(&clients[0], &buffers[0]);
        else if (!cache_put_fast(address_of(&clients[0]), cache_piece(&buffers[0])))
            return argument;
    }
    for (unsigned i = 0; i < 2; i++)
        if (clients[i].caches.next == &clients[i].caches ||
            stream_heap_free_bytes(clients[i].stream_heap) != EXTENT_BYTES - 512)
            return argument;
    return NULL;
}

static void two_clients_of_a_thread_have_a_cache_each(void **state) {
    struct false_client clients[2];

    (void)state;
    for (unsigned i = 0; i < 2; i++)
        client_init(&clients[i]);
    assert_null(RUN_IN_THREAD(use_two_clients, clients));
    for (unsigned i = 0; i < 2; i++) {
        client_end(&clients[i]);
    }
}

/* A client closes while a thread that used it lives on. */
struct survivor {
    struct false_client *clients;
    atomic_bool used, closed; /* the first client */
};

static void *survive(void *argument) {
    struct survivor *survivor = argument;
    struct gpupool_buffer buffer;

    bool fine = buffer_take(&survivor->clients[0], 4096, &buffer);
    if (fine)
        buffer_put(&survivor->clients[0], &buffer);
    const struct thread_cache *before = client_thread()->caches;
    atomic_store(&survivor->used, true);
    while (!atomic_load(&survivor->closed))
        test_pause();
    /* No call finds memory of the old client; the next client gets the object. */
    fine = fine && client_thread()->caches->owner == NULL && client_thread()->caches->all == NULL &&
           !cache_take_fast(address_of(&survivor->clients[0]), POOL, 4096, NULL, &buffer);
    fine = fine && buffer_take(&survivor->clients[1], 4096, &buffer) && client_thread()->caches == before &&
           cache_piece(&buffer)->stream_heap == survivor->clients[1].stream_heap;
    if (fine)
        buffer_put(&survivor->clients[1], &buffer);
    return fine ? NULL : argument;
}

static void a_client_that_closes_leaves_nothing_in_a_living_thread(void **state) {
    struct false_client clients[2];
    pthread_t thread;
    void *wrong;

    (void)state;
    for (unsigned i = 0; i < 2; i++)
        client_init(&clients[i]);
    struct survivor survivor = {.clients = clients};
    assert_int_equal(pthread_create(&thread, NULL, survive, &survivor), 0);
    WAIT_UNTIL(atomic_load(&survivor.used));
    assert_int_equal(stream_heap_free_bytes(clients[0].stream_heap), EXTENT_BYTES - 4096);
    client_deinit(&clients[0]);
    atomic_store(&survivor.closed, true);
    TEST_JOIN(thread, &wrong);
    assert_null(wrong);
    client_end(&clients[1]);
}

/* --- bins --- */

static void what_was_used_since_the_last_look_stays(void **state) {
    struct gpupool_buffer buffer;
    struct false_client client;
    _Atomic uint64_t visits = 0;

    (void)state;
    client_init(&client);
    assert_true(buffer_take(&client, 4096, &buffer));
    buffer_put(&client, &buffer);
    visit_all(&client, true, &visits); /* used before it */
    assert_int_equal(stream_heap_free_bytes(client.stream_heap), EXTENT_BYTES - 4096);
    assert_true(buffer_take(&client, 4096, &buffer));
    buffer_put(&client, &buffer);
    visit_all(&client, true, &visits); /* used again, by hits */
    assert_int_equal(stream_heap_free_bytes(client.stream_heap), EXTENT_BYTES - 4096);
    visit_all(&client, true, &visits);
    assert_true(everything_is_back(&client));
    assert_int_equal(visits, 3);
    client_deinit(&client);
}

#define MANY 100u

static void a_full_bin_hands_whole_magazines_on(void **state) {
    struct gpupool_buffer buffers[MANY];
    struct false_client client;
    unsigned fast = 0, capacity = depot_capacity(0);

    (void)state;
    client_init(&client);
    for (unsigned i = 0; i < MANY; i++)
        assert_true(buffer_take(&client, 512, &buffers[i]));
    for (unsigned i = 0; i < MANY; i++) {
        if (cache_put_fast(address_of(&client), cache_piece(&buffers[i])))
            fast++;
        else
            buffer_put(&client, &buffers[i]);
    }
    /* once for each magazine there was no room */
    assert_int_equal(fast, MANY - (MANY + capacity - 1) / capacity);
    assert_int_equal(stream_heap_free_bytes(client.stream_heap), EXTENT_BYTES - MANY * 512);
    struct thread_bins *own = thread_cache_find(client_thread()->caches, client.stream_heap);
    const struct depot_stack *stack = &client.stream_heap->depot->stacks[0];
    assert_true(stack->count > 0);
    assert_int_equal(bin_count(&own->bins[0]) + stack->count * capacity, MANY);
    /* The fast way finds all that is in the bin, both magazines. */
    for (fast = 0; cache_take_fast(address_of(&client), POOL, 512, NULL, &buffers[fast]); fast++) {
    }
    assert_int_equal(fast + stack->count * capacity, MANY);
    assert_int_equal(bin_count(&own->bins[0]), 0);
    while (fast-- > 0)
        buffer_put(&client, &buffers[fast]);
    thread_cache_enter(client_thread()->caches);
    bin_flush(&own->bins[0], own->stream_heap);
    thread_cache_leave(client_thread()->caches);
    assert_int_equal(bin_count(&own->bins[0]), 0);
    assert_int_equal(stream_heap_free_bytes(client.stream_heap),
                     EXTENT_BYTES - stack->count * capacity * 512);
    client_end(&client);
}

/* Takes what another thread gave. */
struct taker {
    struct false_client *client;
    unsigned count;
    bool wrong;
};

static void *take_what_was_given(void *argument) {
    struct taker *taker = argument;
    struct gpupool_buffer buffers[MANY];
    uint64_t free_bytes = stream_heap_free_bytes(taker->client->stream_heap);

    for (unsigned i = 0; i < taker->count; i++) {
        taker->wrong = taker->wrong || !buffer_take(taker->client, 512, &buffers[i]) ||
                       !mark(&buffers[i], 0, 77) ||
                       stream_heap_free_bytes(taker->client->stream_heap) != free_bytes;
    }
    for (unsigned i = 0; i < taker->count; i++) {
        taker->wrong = taker->wrong || !mark(&buffers[i], 77, 0);
        buffer_put(taker->client, &buffers[i]);
    }
    return NULL;
}

static void what_one_thread_gives_another_takes_by_the_magazine(void **state) {
    struct gpupool_buffer buffers[MANY];
    struct false_client client;

    (void)state;
    client_init(&client);
    for (unsigned i = 0; i < MANY; i++)
        assert_true(buffer_take(&client, 512, &buffers[i]));
    for (unsigned i = 0; i < MANY; i++)
        buffer_put(&client, &buffers[i]);
    struct taker taker = {.client = &client};
    taker.count = client.stream_heap->depot->stacks[0].count * depot_capacity(0);
    assert_true(taker.count > 0);
    RUN_IN_THREAD(take_what_was_given, &taker);
    assert_false(taker.wrong);
    flush_own_cache();
    client_end(&client);
}

/* Pieces of a large class are of different sizes: one that is too small serves no request, and hides no
 * piece. */
static void a_large_piece_is_taken_by_whom_it_is_large_enough_for(void **state) {
    const uint64_t smaller = MIB + 512, larger = MIB + 64 * KIB; /* of one class */
    struct gpupool_buffer buffers[2], again;
    struct false_client client;

    (void)state;
    assert_int_equal(size_class_of(smaller), size_class_of(larger));
    client_init(&client);
    assert_true(buffer_take(&client, larger, &buffers[0]));
    assert_true(buffer_take(&client, smaller, &buffers[1]));
    const void *data = buffers[0].data;
    buffer_put(&client, &buffers[0]);
    buffer_put(&client, &buffers[1]); /* on top */
    assert_false(cache_take_fast(address_of(&client), POOL, larger, NULL, &again));
    assert_true(buffer_take(&client, larger, &again));
    assert_ptr_equal(again.data, data);
    assert_true(buffer_take(&client, smaller, &buffers[1]));
    buffer_put(&client, &buffers[1]);
    buffer_put(&client, &again);
    flush_own_cache();
    client_end(&client);
}

/* --- counters --- */

static void what_is_taken_and_not_given_back_is_in_use(void **state) {
    struct gpupool_buffer buffers[3];
    struct false_client client;
    struct proto_page *page = calloc(1, sizeof *page);
    struct counters *counters = calloc(1, sizeof *counters);
    const struct proto_counters *line = &page->counters[0];

    (void)state;
    client_init(&client);
    counters_init(counters);
    counters->page = page;
    client.stream_heap->counters = counters;
    for (unsigned i = 0; i < 3; i++)
        assert_true(buffer_take(&client, 600, &buffers[i]));
    for (unsigned i = 0; i < 3; i++)
        buffer_put(&client, &buffers[i]);
    assert_int_equal(line->pool, POOL);
    /* by the fast ways only, for the slow ones here are the test's own */
    uint64_t hits = line->hits, taken = line->taken_bytes, given = line->given_bytes;
    assert_true(cache_take_fast(address_of(&client), POOL, 600, NULL, &buffers[0]));
    assert_true(cache_take_fast(address_of(&client), POOL, 1, NULL, &buffers[1]) == false);
    assert_int_equal(line->hits, hits + 1);
    assert_int_equal(line->taken_bytes, taken + 1024);
    assert_int_equal(line->given_bytes, given);
    assert_true(cache_put_fast(address_of(&client), cache_piece(&buffers[0])));
    assert_int_equal(line->given_bytes, given + 1024);
    assert_int_equal(line->misses, 0);
    thread_caches_detach(&client.caches);
    assert_false(counters->taken[0]);
    assert_int_equal(line->taken_bytes, taken + 1024); /* the next one goes on with them */
    client_deinit(&client);
    counters_deinit(counters);
    free(counters);
    free(page);
}

static void while_somebody_visits_there_is_no_fast_way(void **state) {
    struct false_client client;
    struct gpupool_buffer buffer, other;

    (void)state;
    if (!THREAD_CACHE_KNOWS_MEMBARRIER || !has_fast_way())
        skip();
    client_init(&client);
    assert_true(buffer_take(&client, 512, &buffer));
    buffer_put(&client, &buffer);
    assert_true(cache_take_fast(address_of(&client), POOL, 512, NULL, &buffer));
    thread_cache_visit(client_thread()->caches);
    assert_false(cache_put_fast(address_of(&client), cache_piece(&buffer)));
    assert_false(client_thread()->caches->inside); /* or the visitor of another thread would wait for ever */
    assert_int_equal(cache_piece(&buffer)->generation, buffer.generation);
    assert_false(cache_take_fast(address_of(&client), POOL, 512, NULL, &other));
    assert_false(client_thread()->caches->inside);
    thread_cache_part(client_thread()->caches);
    assert_true(cache_put_fast(address_of(&client), cache_piece(&buffer)));
    assert_true(cache_take_fast(address_of(&client), POOL, 512, NULL, &buffer));
    buffer_put(&client, &buffer);
    thread_caches_detach(&client.caches);
    client_deinit(&client);
}

#ifndef MEMBARRIER_CMD_GET_REGISTRATIONS
#define MEMBARRIER_CMD_GET_REGISTRATIONS (1 << 9) /* Linux 6.3 */
#endif

static long registrations(void) {
    return syscall(SYS_membarrier, MEMBARRIER_CMD_GET_REGISTRATIONS, 0, 0);
}

/* The first of the tests: a process registers once. Registering waits for the kernel, and a thread that opens
 * a client is not to. */
static void a_process_registers_for_barriers_with_the_first_visit(void **state) {
    struct false_client client;
    struct gpupool_buffer buffer;

    (void)state;
    if (thread_cache_locks || registrations() < 0)
        skip();
    assert_int_equal(registrations(), 0);
    client_init(&client);
    assert_true(buffer_take(&client, 512, &buffer));
    buffer_put(&client, &buffer);
    assert_int_equal(registrations(), 0);
    thread_cache_visit(client_thread()->caches);
    assert_int_equal(registrations(), MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    thread_cache_part(client_thread()->caches);
    thread_caches_detach(&client.caches);
    client_deinit(&client);
}

static int lock_with_the_mutex(void **state) {
    (void)state;
    thread_cache_locks = true;
    if (client_thread()->caches != NULL)
        client_thread()->caches->visited = true;
    return 0;
}

static int lock_as_the_process_can(void **state) {
    (void)state;
    thread_cache_locks = has_to_lock;
    if (client_thread()->caches != NULL)
        client_thread()->caches->visited = has_to_lock;
    return 0;
}

#define BOTH_WAYS(name)                                                                                      \
    {#name ", asymmetric lock where there is one", name, lock_as_the_process_can, NULL, NULL}, {             \
#name ", mutex", name, lock_with_the_mutex, lock_as_the_process_can, NULL                            \
    }

/* Of the fast way itself. */
#define FAST_WAY(name) cmocka_unit_test_setup(name, lock_as_the_process_can)

int main(void) {
    const struct CMUnitTest tests[] = {
        FAST_WAY(a_process_registers_for_barriers_with_the_first_visit),
        BOTH_WAYS(an_owner_and_a_visitor_never_have_the_same_piece),
        BOTH_WAYS(several_owners_and_visitors_never_have_the_same_piece),
        BOTH_WAYS(a_threads_end_gives_its_pieces_back),
        BOTH_WAYS(two_clients_of_a_thread_have_a_cache_each),
        BOTH_WAYS(a_client_that_closes_leaves_nothing_in_a_living_thread),
        BOTH_WAYS(what_was_used_since_the_last_look_stays),
        FAST_WAY(a_full_bin_hands_whole_magazines_on),
        BOTH_WAYS(what_one_thread_gives_another_takes_by_the_magazine),
        BOTH_WAYS(a_large_piece_is_taken_by_whom_it_is_large_enough_for),
        FAST_WAY(what_is_taken_and_not_given_back_is_in_use),
        FAST_WAY(while_somebody_visits_there_is_no_fast_way),
    };
    thread_cache_prepare();
    thread_cache_prepare();
    has_to_lock = thread_cache_locks;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
