/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the two parts of a synchronised array that only reckon: its states, and the record of the streams
 * that use a memory. The record is played through all short histories of three streams and the CPU, beside a
 * model that knows the order of all work by clocks: each stream counts its work, and knows how far it is
 * behind each other stream. A use comes behind all work that it has to follow, and no stream waits for work
 * that it already follows.
 */
#include <errno.h>

#include "client/objects/synced_state.h"
#include "client/objects/synced_usage.h"
#include "tests/failing_memory.h"
#include "unit.h"

/* --- states --- */

#define UNINITIALIZED GPUPOOL_SYNCED_UNINITIALIZED
#define HOST_NEWER    GPUPOOL_SYNCED_HOST_NEWER
#define DEVICE_NEWER  GPUPOOL_SYNCED_DEVICE_NEWER
#define IN_STEP       GPUPOOL_SYNCED_IN_STEP

static const struct transition {
    enum gpupool_synced_state before;
    enum synced_side side;
    unsigned access;
    enum synced_fill fill;
    enum gpupool_synced_state after;
} transitions[] = {
    {UNINITIALIZED, SYNCED_HOST, GPUPOOL_READ, SYNCED_ZERO, HOST_NEWER},
    {UNINITIALIZED, SYNCED_HOST, GPUPOOL_WRITE, SYNCED_ZERO, HOST_NEWER},
    {UNINITIALIZED, SYNCED_HOST, GPUPOOL_OVERWRITE, SYNCED_KEEP, HOST_NEWER},
    {UNINITIALIZED, SYNCED_HOST, SYNCED_FETCH, SYNCED_KEEP, UNINITIALIZED},
    {UNINITIALIZED, SYNCED_DEVICE, GPUPOOL_READ, SYNCED_ZERO, DEVICE_NEWER},
    {UNINITIALIZED, SYNCED_DEVICE, GPUPOOL_WRITE, SYNCED_ZERO, DEVICE_NEWER},
    {UNINITIALIZED, SYNCED_DEVICE, GPUPOOL_OVERWRITE, SYNCED_KEEP, DEVICE_NEWER},
    {UNINITIALIZED, SYNCED_DEVICE, SYNCED_FETCH, SYNCED_KEEP, UNINITIALIZED},
    {HOST_NEWER, SYNCED_HOST, GPUPOOL_READ, SYNCED_KEEP, HOST_NEWER},
    {HOST_NEWER, SYNCED_HOST, GPUPOOL_WRITE, SYNCED_KEEP, HOST_NEWER},
    {HOST_NEWER, SYNCED_HOST, GPUPOOL_OVERWRITE, SYNCED_KEEP, HOST_NEWER},
    {HOST_NEWER, SYNCED_HOST, SYNCED_FETCH, SYNCED_KEEP, HOST_NEWER},
    {HOST_NEWER, SYNCED_DEVICE, GPUPOOL_READ, SYNCED_COPY, IN_STEP},
    {HOST_NEWER, SYNCED_DEVICE, GPUPOOL_WRITE, SYNCED_COPY, DEVICE_NEWER},
    {HOST_NEWER, SYNCED_DEVICE, GPUPOOL_OVERWRITE, SYNCED_KEEP, DEVICE_NEWER},
    {HOST_NEWER, SYNCED_DEVICE, SYNCED_FETCH, SYNCED_COPY, IN_STEP},
    {DEVICE_NEWER, SYNCED_HOST, GPUPOOL_READ, SYNCED_COPY, IN_STEP},
    {DEVICE_NEWER, SYNCED_HOST, GPUPOOL_WRITE, SYNCED_COPY, HOST_NEWER},
    {DEVICE_NEWER, SYNCED_HOST, GPUPOOL_OVERWRITE, SYNCED_KEEP, HOST_NEWER},
    {DEVICE_NEWER, SYNCED_HOST, SYNCED_FETCH, SYNCED_COPY, IN_STEP},
    {DEVICE_NEWER, SYNCED_DEVICE, GPUPOOL_READ, SYNCED_KEEP, DEVICE_NEWER},
    {DEVICE_NEWER, SYNCED_DEVICE, GPUPOOL_WRITE, SYNCED_KEEP, DEVICE_NEWER},
    {DEVICE_NEWER, SYNCED_DEVICE, GPUPOOL_OVERWRITE, SYNCED_KEEP, DEVICE_NEWER},
    {DEVICE_NEWER, SYNCED_DEVICE, SYNCED_FETCH, SYNCED_KEEP, DEVICE_NEWER},
    {IN_STEP, SYNCED_HOST, GPUPOOL_READ, SYNCED_KEEP, IN_STEP},
    {IN_STEP, SYNCED_HOST, GPUPOOL_WRITE, SYNCED_KEEP, HOST_NEWER},
    {IN_STEP, SYNCED_HOST, GPUPOOL_OVERWRITE, SYNCED_KEEP, HOST_NEWER},
    {IN_STEP, SYNCED_HOST, SYNCED_FETCH, SYNCED_KEEP, IN_STEP},
    {IN_STEP, SYNCED_DEVICE, GPUPOOL_READ, SYNCED_KEEP, IN_STEP},
    {IN_STEP, SYNCED_DEVICE, GPUPOOL_WRITE, SYNCED_KEEP, DEVICE_NEWER},
    {IN_STEP, SYNCED_DEVICE, GPUPOOL_OVERWRITE, SYNCED_KEEP, DEVICE_NEWER},
    {IN_STEP, SYNCED_DEVICE, SYNCED_FETCH, SYNCED_KEEP, IN_STEP},
};

static void every_access_fills_what_it_has_to_and_no_more(void **state) {
    (void)state;
    assert_int_equal(sizeof transitions / sizeof *transitions, 4 * 2 * 4);
    for (unsigned i = 0; i < sizeof transitions / sizeof *transitions; i++) {
        const struct transition *wanted = &transitions[i];
        struct synced_step step = synced_step(wanted->before, wanted->side, wanted->access);
        assert_int_equal(step.fill, wanted->fill);
        assert_int_equal(step.after, wanted->after);
        assert_int_equal(step.writes, wanted->access == GPUPOOL_WRITE || wanted->access == GPUPOOL_OVERWRITE);
        /* An access that returns a pointer needs memory; a fetch without contents needs none. */
        assert_int_equal(step.needs_memory,
                         wanted->access != SYNCED_FETCH || wanted->before != UNINITIALIZED);
        for (unsigned j = 0; j < i; j++)
            assert_false(transitions[j].before == wanted->before && transitions[j].side == wanted->side &&
                         transitions[j].access == wanted->access);
    }
}

static void what_is_lost_is_not_good(void **state) {
    (void)state;
    assert_int_equal(synced_lose(IN_STEP, SYNCED_DEVICE), HOST_NEWER);
    assert_int_equal(synced_lose(IN_STEP, SYNCED_HOST), DEVICE_NEWER);
    assert_int_equal(synced_lose(HOST_NEWER, SYNCED_HOST), UNINITIALIZED);
    assert_int_equal(synced_lose(HOST_NEWER, SYNCED_DEVICE), HOST_NEWER);
    assert_int_equal(synced_lose(UNINITIALIZED, SYNCED_DEVICE), UNINITIALIZED);
    assert_true(synced_is_good(IN_STEP, SYNCED_HOST) && synced_is_good(IN_STEP, SYNCED_DEVICE));
    assert_true(synced_is_good(HOST_NEWER, SYNCED_HOST) && !synced_is_good(HOST_NEWER, SYNCED_DEVICE));
    assert_true(synced_is_good(DEVICE_NEWER, SYNCED_DEVICE) && !synced_is_good(DEVICE_NEWER, SYNCED_HOST));
}

/* --- uses --- */

#define STREAMS   3u
#define CPU       STREAMS /* its place in the model */
#define EVENTS    4u      /* accesses and copies, reading and writing */
#define CHOICES   (STREAMS * EVENTS + 2)
#define LENGTH    5u
#define SNAPSHOTS 256u

enum right {
    RIGHT_NONE,
    RIGHT_READ,
    RIGHT_WRITE,
};

struct clock {
    unsigned of[STREAMS + 1];
};

struct model {
    struct clock known[STREAMS + 1]; /* how far of each other each one is behind */
    unsigned wrote[STREAMS],
        used[STREAMS];                 /* the last that each did that a reader, a writer has to know of */
    enum right right[STREAMS];         /* what its caller may do without a call */
    struct clock snapshots[SNAPSHOTS]; /* fences, by value */
    unsigned snapshot_count;
    bool overtakes, waits_in_vain;
};

static const struct synced_stream streams[STREAMS] = {{.handle = NULL},
                                                      {.handle = GPUPOOL_PER_THREAD, .thread = 1},
                                                      {.handle = GPUPOOL_PER_THREAD, .thread = 2}};

static unsigned index_of(const struct synced_stream *stream) {
    for (unsigned i = 0; i < STREAMS; i++)
        if (synced_stream_is(&streams[i], stream))
            return i;
    fail();
    return 0;
}

static struct fence model_fence(struct model *model, unsigned stream) {
    assert_true(model->snapshot_count < SNAPSHOTS);
    model->snapshots[model->snapshot_count] = model->known[stream];
    return (struct fence){.word = 1, .value = model->snapshot_count++};
}

static void model_use(struct model *model, unsigned stream, bool writes) {
    model->used[stream] = ++model->known[stream].of[stream];
    if (writes)
        model->wrote[stream] = model->used[stream];
}

/* The callers' work on their streams between two calls, as far as it is allowed. */
static void model_work(struct model *model) {
    for (unsigned i = 0; i < STREAMS; i++)
        if (model->right[i] != RIGHT_NONE)
            model_use(model, i, model->right[i] == RIGHT_WRITE);
}

static void learn(struct clock *known, const struct clock *more) {
    for (unsigned i = 0; i <= STREAMS; i++)
        if (known->of[i] < more->of[i])
            known->of[i] = more->of[i];
}

/* As client/objects/synced_order.c does it. */
static void order(struct model *model, struct synced_usage *usage, unsigned by, bool writes) {
    struct synced_point *point;
    unsigned position = 0;

    while ((point = usage_next(usage, by == CPU ? NULL : &streams[by], writes, &position)) != NULL) {
        unsigned other = index_of(&point->stream);
        assert_true(other != by);
        struct fence fence = point->fence;
        if (!point->has_fence || (writes && point->is_open))
            fence = model_fence(model, other);
        if (!point->has_fence) {
            point->fence = fence;
            point->has_fence = true;
        }
        /* A wait for work that the CPU has seen costs nothing. */
        if (model->known[by].of[other] >= (writes ? model->used[other] : model->wrote[other]) &&
            model->known[CPU].of[other] < model->snapshots[fence.value].of[other])
            model->waits_in_vain = true;
        learn(&model->known[by], &model->snapshots[fence.value]);
    }
    for (unsigned i = 0; i < STREAMS; i++)
        if (model->known[by].of[i] < (writes ? model->used[i] : model->wrote[i]))
            model->overtakes = true;
}

static void step(struct model *model, struct synced_usage *usage, unsigned choice) {
    unsigned by = choice / EVENTS;
    bool writes = choice % 2, is_copy = choice / 2 % 2;

    model_work(model);
    for (unsigned i = 0; i < STREAMS; i++) {
        if (writes && (i != by || is_copy)) /* something else was accessed before there is a copy to make */
            model->right[i] = RIGHT_NONE;
        else if ((i != by || is_copy) && model->right[i] == RIGHT_WRITE)
            model->right[i] = RIGHT_READ;
    }
    if (by >= STREAMS) {
        order(model, usage, CPU, writes);
        for (unsigned i = 0; i < STREAMS; i++) /* what is enqueued from now on comes after */
            learn(&model->known[i], &model->known[CPU]);
        if (writes)
            usage_forget(usage);
        else
            usage_forget_writer(usage);
    } else if (is_copy) {
        order(model, usage, by, writes);
        model_use(model, by, writes);
        assert_int_equal(usage_reserve(usage), 0);
        struct fence fence = model_fence(model, by);
        if (writes)
            usage_note_write(usage, &streams[by], &fence);
        else
            usage_note_read(usage, &streams[by], &fence);
    } else {
        bool at_once =
            writes ? usage_write_at_once(usage, &streams[by]) : usage_read_at_once(usage, &streams[by]);
        order(model, usage, by, writes); /* which has nothing to do where it may be at once */
        assert_int_equal(usage_reserve(usage), 0);
        if (!at_once && writes)
            usage_note_write(usage, &streams[by], NULL);
        else if (!at_once)
            usage_note_read(usage, &streams[by], NULL);
        /* what was done once is done at once again */
        struct synced_usage before = *usage;
        assert_true(writes ? usage_write_at_once(usage, &streams[by])
                           : usage_read_at_once(usage, &streams[by]));
        assert_memory_equal(&before.count, &usage->count, sizeof before.count);
        if (writes)
            model->right[by] = RIGHT_WRITE;
        else if (model->right[by] == RIGHT_NONE)
            model->right[by] = RIGHT_READ;
        model_use(model, by, writes);
    }
    assert_true(usage_is_valid(usage));
}

/* "R0 w1 …": who does what, accesses in capitals and copies in small letters; 3 is the CPU. */
static const char *text_of(unsigned history) {
    static char text[3 * LENGTH + 1];
    for (unsigned i = 0; i < LENGTH; i++, history /= CHOICES)
        snprintf(text + 3 * i, 4, "%c%u ", "RWrw"[history % CHOICES % EVENTS], history % CHOICES / EVENTS);
    return text;
}

static void no_use_overtakes_what_it_must_come_behind(void **state) {
    struct synced_usage usage = {0};
    unsigned histories = 1;

    (void)state;
    for (unsigned i = 0; i < LENGTH; i++)
        histories *= CHOICES;
    for (unsigned history = 0; history < histories; history++) {
        struct model model;
        unsigned rest = history;
        memset(&model, 0, offsetof(struct model, snapshots));
        model.snapshot_count = 0;
        model.overtakes = model.waits_in_vain = false;
        usage_forget(&usage);
        for (unsigned i = 0; i < LENGTH; i++, rest /= CHOICES)
            step(&model, &usage, rest % CHOICES);
        if (model.overtakes)
            fail_msg("history %s: a use overtakes one that it must come behind", text_of(history));
        if (model.waits_in_vain)
            fail_msg("history %s: a stream waits for what it is behind already", text_of(history));
    }
    usage_deinit(&usage);
}

static void readers_are_as_many_as_there_are_streams(void **state) {
    struct synced_usage usage = {0};
    struct synced_stream stream = {0};
    unsigned position = 0, count = 0;

    (void)state;
    usage_note_write(&usage, &stream, NULL);
    for (uintptr_t i = 1; i <= 1000; i++) {
        stream.handle = (void *)(i << 8);
        assert_int_equal(usage_reserve(&usage), 0);
        usage_note_read(&usage, &stream, NULL);
        assert_true(usage_read_at_once(&usage, &stream));
    }
    assert_true(usage_is_valid(&usage));
    assert_int_equal(usage.count, 1000);
    while (usage_next(&usage, &stream, true, &position) != NULL)
        count++;
    assert_int_equal(count, 1000); /* the writer, and all but itself */
    position = 0;
    assert_null(usage_next(&usage, &stream, false, &position));
    usage_note_write(&usage, &stream, NULL);
    assert_int_equal(usage.count, 0);
    usage_deinit(&usage);
}

static void without_memory_a_reader_has_no_room_and_nothing_changes(void **state) {
    struct synced_usage usage = {0};
    struct synced_stream stream = {0};

    (void)state;
    usage_note_write(&usage, &stream, NULL);
    for (unsigned i = 1; i <= 40; i++) {
        struct synced_usage before = usage;
        if (usage.count == usage.capacity) {
            memory_fail_nth(1);
            assert_int_equal(usage_reserve(&usage), -ENOMEM);
            assert_memory_equal(&before, &usage, sizeof usage);
        }
        stream.handle = (void *)(uintptr_t)(i << 8);
        assert_int_equal(usage_reserve(&usage), 0);
        usage_note_read(&usage, &stream, NULL);
        assert_true(usage_is_valid(&usage));
    }
    usage_deinit(&usage);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_access_fills_what_it_has_to_and_no_more),
        cmocka_unit_test(what_is_lost_is_not_good),
        cmocka_unit_test(no_use_overtakes_what_it_must_come_behind),
        cmocka_unit_test(readers_are_as_many_as_there_are_streams),
        cmocka_unit_test(without_memory_a_reader_has_no_room_and_nothing_changes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
