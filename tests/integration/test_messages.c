/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory a pool reserves for buffers that go from one client to another. The reserved bytes stay
 * within a bound of those that were live at the peak, for all sizes and numbers of messages on their way. After each message the GPU's work is waited for, so that nothing is live behind a fence.
 */
#include <math.h>
#include <stdio.h>

#include "tests/random.h"

/* With the steps that a pool has by itself, and without growth ahead, which is a step more. */
#define TEST_CONFIG_TEXT "[device]\nlimit = 4GiB\n[host]\nlimit = 4GiB\nlow_water = 0\n"
#include "tests/integration/cache_fixture.h"

#define LIFETIME_NS (3600 * NS_PER_S)
#define FLIGHT_MAX  64u
#define SPARE_BYTES (64 * MIB)

static const unsigned kinds[] = {GPUPOOL_POOL_DEVICE, GPUPOOL_POOL_HOST};

static const char *name_of(unsigned kind) {
    return kind == GPUPOOL_POOL_HOST ? "host" : "device";
}

/* Two clients, and the messages between them. */
struct line {
    struct gpupool_client *sender, *taker;
    unsigned kind, count;
    struct gpupool_token tokens[FLIGHT_MAX + 1];
    uint64_t sizes[FLIGHT_MAX + 1];
    uint64_t live_bytes, peak_bytes;
};

static struct line line_open(unsigned kind) {
    empty_the_pools();
    return (struct line){.sender = open_cached(), .taker = open_cached(), .kind = kind};
}

static void note_live(struct line *line, uint64_t bytes) {
    line->live_bytes += bytes;
    if (line->live_bytes > line->peak_bytes)
        line->peak_bytes = line->live_bytes;
}

/* Waits until the client's work is done, and the daemon has read all that the client said. */
static void settle(struct gpupool_client *client, unsigned kind) {
    size_t count = 0;

    if (kind == GPUPOOL_POOL_DEVICE)
        MUST(gpupool_stream_synchronize(client, 0, NULL));
    MUST(gpupool_pools(client, NULL, 0, &count));
}

static struct gpupool_buffer line_acquire(struct line *line, uint64_t size_bytes) {
    note_live(line, size_bytes);
    return acquire(line->sender, line->kind, size_bytes, stream_of(line->kind));
}

static void line_release(struct line *line, struct gpupool_buffer *buffer) {
    uint64_t bytes = buffer->size_bytes;

    MUST(gpupool_release(line->sender, buffer, stream_of(line->kind)));
    line->live_bytes -= bytes;
}

/* The sender sends the buffer and gives its own back. */
static void line_send(struct line *line, struct gpupool_buffer *buffer) {
    line->sizes[line->count] = buffer->size_bytes;
    MUST(gpupool_send(line->sender, buffer, stream_of(line->kind), 1, LIFETIME_NS,
                      &line->tokens[line->count++]));
    MUST(gpupool_release(line->sender, buffer, stream_of(line->kind)));
    settle(line->sender, line->kind);
}

/* The taker takes messages, each in turn, until no more than so many are on their way. */
static void line_take(struct line *line, unsigned most) {
    struct gpupool_buffer buffer;

    while (line->count > most) {
        MUST(gpupool_attach(line->taker, &line->tokens[0], stream_of(line->kind), 0, &buffer));
        MUST(gpupool_release(line->taker, &buffer, stream_of(line->kind)));
        settle(line->taker, line->kind);
        line->live_bytes -= line->sizes[0];
        line->count--;
        memmove(line->tokens, line->tokens + 1, line->count * sizeof *line->tokens);
        memmove(line->sizes, line->sizes + 1, line->count * sizeof *line->sizes);
    }
}

static void line_message(struct line *line, uint64_t size_bytes, unsigned flight) {
    struct gpupool_buffer buffer = line_acquire(line, size_bytes);

    line_send(line, &buffer);
    line_take(line, flight);
}

/* Ends it, and expects that the pool reserved no more than it may: so much besides 1.25 of what was live. */
static void line_close(struct line *line, uint64_t spare_bytes, const char *what) {
    uint64_t reserved_bytes = daemon_pool(&daemon_, name_of(line->kind), 0, "reserved_bytes");

    if (reserved_bytes > line->peak_bytes + line->peak_bytes / 4 + spare_bytes)
        fail_msg("%s, %s memory: %llu MiB are reserved, %llu MiB were live", what, name_of(line->kind),
                 (unsigned long long)(reserved_bytes / MIB), (unsigned long long)(line->peak_bytes / MIB));
    line_take(line, 0);
    assert_true(stream_heaps_are_valid(line->sender));
    gpupool_close(line->taker);
    close_cached(line->sender);
}

/* Of 1 KiB to most_bytes: each size as often as another, or each doubling. */
static uint64_t draw_size_to(uint64_t *random, uint64_t most_bytes, bool is_uniform) {
    double part = (double)(random_next(random) >> 11) / (double)(UINT64_C(1) << 53);

    return (uint64_t)(is_uniform ? (double)KIB + part * (double)(most_bytes - KIB)
                                 : (double)KIB * exp2(part * log2((double)(most_bytes / KIB))));
}

static uint64_t draw_size(uint64_t *random, bool is_uniform) {
    return draw_size_to(random, 16 * MIB, is_uniform);
}

static void messages_of_any_size_need_little_more_than_what_is_live(void **state) {
    static const unsigned flights[] = {0, 8, FLIGHT_MAX};

    (void)state;
    for (unsigned kind = 0; kind < 2; kind++)
        for (unsigned i = 0; i < 6; i++) {
            uint64_t random = random_seed(1 + i);
            struct line line = line_open(kinds[kind]);
            char text[64];
            for (unsigned n = 0; n < 400; n++)
                line_message(&line, draw_size_to(&random, i < 4 ? 16 * MIB : 4 * MIB, i % 2 == 0),
                             flights[i / 2]);
            snprintf(text, sizeof text, "%s, %u on their way", i % 2 == 0 ? "uniform" : "logarithmic",
                     flights[i / 2]);
            line_close(&line, SPARE_BYTES, text);
        }
}

/* Rests of extents for the small ones lay between what the large ones need. */
static void large_messages_among_small_ones_find_room(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct line line = line_open(kinds[kind]);
        for (unsigned n = 1; n <= 800; n++)
            line_message(&line, n % 50 == 0 ? 16 * MIB : 1000000, 0);
        line_close(&line, SPARE_BYTES, "each fiftieth is large");
    }
}

/* The buffers of a batch are all acquired before the first is sent. */
static void batches_need_little_more_than_what_is_live(void **state) {
    uint64_t random = random_seed(7);
    struct gpupool_buffer batch[24];

    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct line line = line_open(kinds[kind]);
        for (unsigned n = 0; n < 20; n++) {
            for (unsigned i = 0; i < 24; i++)
                batch[i] = line_acquire(&line, draw_size(&random, n % 2 == 0));
            for (unsigned i = 0; i < 24; i++)
                line_send(&line, &batch[i]);
            line_take(&line, n % 3 == 0 ? 24 : 0);
        }
        line_close(&line, SPARE_BYTES, "batches");
    }
}

/* Some buffers are shared, and kept for long. They lie between others, so that more is reserved. */
static void shared_buffers_that_stay_do_not_keep_the_memory_beside_them(void **state) {
    uint64_t random = random_seed(9);
    struct gpupool_buffer kept[16] = {0};
    struct gpupool_token token;

    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct line line = line_open(kinds[kind]);
        for (unsigned n = 0; n < 400; n++) {
            if (n % 10 == 0) {
                struct gpupool_buffer *place = &kept[n / 10 % 16];
                if (place->data != NULL)
                    line_release(&line, place);
                *place = line_acquire(&line, draw_size(&random, false));
                MUST(gpupool_share(line.sender, place, stream_of(line.kind), &token));
            }
            line_message(&line, draw_size(&random, n % 2 == 0), n / 50);
        }
        for (unsigned i = 0; i < 16; i++)
            line_release(&line, &kept[i]);
        settle(line.sender, line.kind);
        line_close(&line, 2 * SPARE_BYTES, "kept ones");
    }
}

/* The sender's own buffers come and go, and each hundredth is sent. They are hits all the same: the daemon is
 * asked for what was sent, and for little else. */
static void a_process_that_sends_little_keeps_its_cache(void **state) {
    uint64_t random = random_seed(11);
    struct gpupool_buffer own[64] = {0};

    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct line line = line_open(kinds[kind]);
        uint64_t acquires = 0;
        for (unsigned n = 0; n < 10000; n++) {
            struct gpupool_buffer *place = &own[random_next(&random) % 64];
            if (n == 5000)
                acquires = daemon_pool(&daemon_, name_of(line.kind), 0, "acquires");
            if (place->data != NULL)
                line_release(&line, place);
            *place = line_acquire(&line, draw_size(&random, false));
            if (n % 100 == 0) {
                line_send(&line, place);
                *place = (struct gpupool_buffer){0};
                line_take(&line, 0);
            }
        }
        acquires = daemon_pool(&daemon_, name_of(line.kind), 0, "acquires") - acquires;
        print_message("%s: %llu acquires\n", name_of(line.kind), (unsigned long long)acquires);
        assert_true(acquires < 200);
        for (unsigned i = 0; i < 64; i++)
            if (own[i].data != NULL)
                line_release(&line, &own[i]);
        settle(line.sender, line.kind);
        gpupool_close(line.taker);
        close_cached(line.sender);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_any_size_need_little_more_than_what_is_live),
        cmocka_unit_test(large_messages_among_small_ones_find_room),
        cmocka_unit_test(batches_need_little_more_than_what_is_live),
        cmocka_unit_test(shared_buffers_that_stay_do_not_keep_the_memory_beside_them),
        cmocka_unit_test(a_process_that_sends_little_keeps_its_cache),
    };

    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
