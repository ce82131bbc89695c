/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that are hard to pack: their sizes and their lifetimes are random, and the live bytes stay near a
 * ceiling. An arena that gathers idle segments at each miss would do so for ever. Moves end when the memory
 * suffices for buffers that lie where they do; where the pool has no more memory, moves go on.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cache_fixture.h"
#include "tests/random.h"

#define LIVE_BYTES (4 * GIB)
#define SIZE_MIN   (5.0 * (double)MIB)
#define SIZE_MAX_  (200.0 * (double)MIB)
#define LIVE_MAX   1024u
#define TAKES      3000u
#define WAIT_NS    (60 * NS_PER_S) /* far longer than a request waits for growth */

struct packing {
    struct test_daemon daemon;
    struct gpupool_client *client;
    void *stream;
    uint32_t pool;
    uint64_t random;
    struct gpupool_buffer live[LIVE_MAX];
    unsigned n_live;
    uint64_t live_bytes, takes;
};

static uint64_t draw(struct packing *packing, uint64_t below) {
    return random_next(&packing->random) % below;
}

/* Evenly on a logarithmic scale. */
static uint64_t draw_size(struct packing *packing) {
    double share = (double)draw(packing, 1u << 30) / (double)(1u << 30);
    return (uint64_t)(SIZE_MIN * pow(SIZE_MAX_ / SIZE_MIN, share)) / 512 * 512;
}

static void release_any(struct packing *packing) {
    unsigned number = (unsigned)draw(packing, packing->n_live);

    packing->live_bytes -= packing->live[number].size_bytes;
    MUST(gpupool_release(packing->client, &packing->live[number], packing->stream));
    packing->live[number] = packing->live[--packing->n_live];
}

static void take_one(struct packing *packing) {
    uint64_t size_bytes = draw_size(packing);

    while (packing->live_bytes + size_bytes > LIVE_BYTES || packing->n_live == LIVE_MAX)
        release_any(packing);
    MUST(gpupool_acquire(packing->client, packing->pool, size_bytes, packing->stream, WAIT_NS, 0,
                         &packing->live[packing->n_live]));
    packing->live_bytes += packing->live[packing->n_live++].size_bytes;
    packing->takes++;
}

static void begin(struct packing *packing, const char *pools) {
    static const char *const arguments[] = {"--sim-memory", "12GiB", NULL};

    memset(packing, 0, sizeof *packing);
    packing->random = random_seed(1);
    daemon_start(&packing->daemon, &(struct daemon_options){
                                       .config = pools, .arguments = test_is_simulated() ? arguments : NULL});
    packing->client = open_client(&packing->daemon, 0, GPUPOOL_FOREVER);
    MUST(gpupool_device_pool(packing->client, 0, &packing->pool));
    MUST(gpupool_stream_create(packing->client, 0, &packing->stream));
}

static void end(struct packing *packing) {
    while (packing->n_live > 0)
        release_any(packing);
    assert_true(stream_heaps_are_valid(packing->client));
    gpupool_close(packing->client);
    daemon_stop(&packing->daemon);
}

static uint64_t count_moves(struct packing *packing) {
    return daemon_pool(&packing->daemon, "device", 0, "moves");
}

/* Segments that the client may have moved until now: its credit, and what buffers and time have paid for. */
static uint64_t count_allowed(const struct packing *packing, uint64_t began_ns) {
    return MOVE_DEBT_CREDIT + packing->takes / MOVE_DEBT_TAKES + (clock_now_ns() - began_ns) / MOVE_DEBT_NS;
}

static void moves_end_when_a_little_more_memory_does(void **state) {
    struct packing packing;
    uint64_t began_ns = clock_now_ns();

    (void)state;
    if (!test_has_device())
        skip();
    begin(&packing, "[device]\nexport = vmm\nlimit = 8GiB\n");
    while (packing.takes < TAKES)
        take_one(&packing);
    assert_true(count_moves(&packing) > 0);
    assert_true(count_moves(&packing) <= count_allowed(&packing, began_ns));
    uint64_t reserved_bytes = daemon_pool(&packing.daemon, "device", 0, "reserved_bytes");
    print_message("%llu moves of %llu, %.3f of the ceiling\n", (unsigned long long)count_moves(&packing),
                  (unsigned long long)count_allowed(&packing, began_ns),
                  (double)reserved_bytes / (double)LIVE_BYTES);
    assert_true(reserved_bytes <= LIVE_BYTES / 100 * ARENA_CEILING_PERCENT);
    end(&packing);
}

/* A seventh more than what is live does not suffice without moves. No request waits, and none fails. With an
 * eighth it would depend on the order in which fences arrive whether the parts of slots in use leave enough
 * whole ones. */
static void moves_go_on_where_the_pool_has_no_room(void **state) {
    struct packing packing;

    (void)state;
    if (!test_has_device())
        skip();
    begin(&packing, "[device]\nexport = vmm\nlimit = 4672MiB\n");
    while (packing.takes < TAKES)
        take_one(&packing);
    print_message("%llu moves\n", (unsigned long long)count_moves(&packing));
    assert_true(count_moves(&packing) > 2 * MOVE_DEBT_CREDIT);
    end(&packing);
}

int main(void) {
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_end_when_a_little_more_memory_does),
        cmocka_unit_test(moves_go_on_where_the_pool_has_no_room),
    };
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
