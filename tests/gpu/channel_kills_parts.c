/* SPDX-License-Identifier: Apache-2.0 */
/* The producer and the consumers of channel_kills. Any of them may be killed at any instruction. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/gpu/channel_kills.h"

#define FRAME_BYTES 4096u
#define FRAME_WORDS (FRAME_BYTES / sizeof(uint64_t))
#define HELD_MAX    3u  /* by a consumer: the others leave slots for the producer */
#define STAGED_MAX  32u /* frames between two looks at the stream's end */
#define WAIT_NS     UINT64_C(120000000000)
#define SHORT_NS    1000000L

/* A place, with pinned memory beside the frames where these are of device memory. */
struct scene {
    const struct channel_part *part;
    struct gpupool_client *client;
    struct gpupool_channel *channel;
    struct gpupool_buffer staging;
    void *stream; /* GPUPOOL_NO_STREAM: frames of host memory */
    unsigned n_staged;
    uint64_t staged[STAGED_MAX]; /* sequences of the frames there */
    unsigned n_held;
    struct gpupool_frame held[HELD_MAX]; /* of a consumer: oldest first */
};

static int fail(const char *what) {
    fprintf(stderr, "channel_kills: %s: %s\n", what, gpupool_error_text());
    return CHANNEL_KILLS_FAILED;
}

static int begin(struct scene *scene, const struct channel_part *part, uint32_t place) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    uint32_t pool;

    *scene = (struct scene){.part = part, .stream = GPUPOOL_NO_STREAM};
    options.socket = part->socket;
    options.alloc_timeout_ns = WAIT_NS;
    if (gpupool_open(&options, &scene->client) < 0)
        return fail("open");
    if (part->is_of_device && (gpupool_stream_create(scene->client, 0, &scene->stream) < 0 ||
                               gpupool_host_pool(scene->client, -1, &pool) < 0 ||
                               gpupool_acquire(scene->client, pool, (uint64_t)STAGED_MAX * FRAME_BYTES,
                                               GPUPOOL_NO_STREAM, WAIT_NS, 0, &scene->staging) < 0))
        return fail("a stream and its memory");
    return gpupool_channel_join(scene->client, part->name, place, WAIT_NS, &scene->channel) < 0 ? fail("join")
                                                                                                : 0;
}

static int end(struct scene *scene) {
    if (gpupool_channel_leave(scene->channel) < 0)
        return fail("leave");
    if (scene->part->is_of_device && gpupool_release(scene->client, &scene->staging, scene->stream) < 0)
        return fail("release");
    gpupool_close(scene->client);
    return 0;
}

static uint64_t *staged_memory(const struct scene *scene) {
    return (uint64_t *)scene->staging.data + scene->n_staged * FRAME_WORDS;
}

static void fill(uint64_t *memory, uint64_t sequence) {
    for (unsigned i = 0; i < FRAME_WORDS; i++)
        memory[i] = channel_kills_word(sequence, i);
}

/* Writes the frame of an element; of device memory in stream order. */
static int write_frame(struct scene *scene, const struct gpupool_frame *frame, uint64_t sequence) {
    if (!scene->part->is_of_device) {
        fill(frame->data, sequence);
        return 0;
    }
    uint64_t *memory = staged_memory(scene);
    fill(memory, sequence);
    if (gpupool_copy(scene->client, 0, frame->data, memory, FRAME_BYTES, scene->stream) < 0)
        return fail("copy");
    if (++scene->n_staged < STAGED_MAX)
        return 0;
    scene->n_staged = 0;
    return gpupool_stream_synchronize(scene->client, 0, scene->stream) < 0 ? fail("synchronize") : 0;
}

int channel_kills_produce(const struct channel_part *part) {
    struct gpupool_channel_info info;
    struct gpupool_frame frame;
    struct scene scene;

    int r = begin(&scene, part, GPUPOOL_CHANNEL_PRODUCER);
    if (r != 0)
        return r;
    if (gpupool_channel_look(scene.channel, &info) < 0)
        return fail("look");
    for (uint64_t sequence = info.sent + 1; sequence <= part->elements; sequence++) {
        if (gpupool_channel_loan(scene.channel, scene.stream, WAIT_NS, &frame) < 0)
            return fail("loan");
        r = write_frame(&scene, &frame, sequence);
        if (r != 0)
            return r;
        if (gpupool_channel_send(scene.channel, &frame, FRAME_BYTES, &sequence, sizeof sequence,
                                 scene.stream) < 0)
            return fail("send");
        atomic_store(&part->notes->sent, sequence);
    }
    return end(&scene);
}

/* --- consumers --- */

static int say_wrong(unsigned place, uint64_t sequence, const char *what) {
    fprintf(stderr, "channel_kills: consumer %u, element %" PRIu64 ": %s\n", place, sequence, what);
    return CHANNEL_KILLS_WRONG;
}

static bool is_right(const uint64_t *memory, uint64_t sequence) {
    for (unsigned i = 0; i < FRAME_WORDS; i++)
        if (memory[i] != channel_kills_word(sequence, i))
            return false;
    return true;
}

static _Atomic uint8_t *notes_of(const struct channel_part *part, unsigned place) {
    return &part->notes->elements[(place - 1) * (part->elements + 1)];
}

static void note_lost(const struct channel_part *part, unsigned place, uint64_t sequence) {
    atomic_store(&notes_of(part, place)[sequence], NOTE_LOST);
}

/* Looks at the frames that were copied to pinned memory. */
static int check_staged(struct scene *scene, unsigned place, struct consumer_notes *notes) {
    struct gpupool_channel_info info;

    if (scene->n_staged == 0)
        return 0;
    if (gpupool_stream_synchronize(scene->client, 0, scene->stream) < 0)
        return fail("synchronize");
    if (gpupool_channel_look(scene->channel, &info) < 0)
        return fail("look");
    for (unsigned i = 0; i < scene->n_staged; i++) {
        uint64_t sequence = scene->staged[i];
        bool is_lost = info.lost > 0 && sequence >= info.lost_first && sequence <= info.lost_last;
        if (is_lost)
            note_lost(scene->part, place, sequence);
        else if (!is_right((const uint64_t *)scene->staging.data + i * FRAME_WORDS, sequence))
            return say_wrong(place, sequence, "other contents");
        atomic_fetch_add(&notes->checked, !is_lost);
    }
    scene->n_staged = 0;
    return 0;
}

/* Reads a frame, which is to be checked; of device memory in stream order. */
static int read_frame(struct scene *scene, unsigned place, const struct gpupool_frame *frame,
                      struct consumer_notes *notes) {
    if (!scene->part->is_of_device) {
        atomic_fetch_add(&notes->checked, 1);
        return is_right(frame->data, frame->sequence) ? 0
                                                      : say_wrong(place, frame->sequence, "other contents");
    }
    if (gpupool_copy(scene->client, 0, staged_memory(scene), frame->data, FRAME_BYTES, scene->stream) < 0)
        return fail("copy");
    scene->staged[scene->n_staged++] = frame->sequence;
    return 0;
}

/* Whether the place may receive this element now: each one once, in order; and again those that a dead process may
 * not have released. *next: the sequence of the next one. */
static const char *check_order(const struct gpupool_frame *frame, _Atomic uint8_t *elements, uint64_t *next) {
    uint64_t sequence = frame->sequence, metadata;

    if (frame->metadata_bytes != sizeof metadata || frame->size_bytes != FRAME_BYTES || frame->missed != 0)
        return "another size, or elements were missed";
    memcpy(&metadata, frame->metadata, sizeof metadata);
    if (metadata != sequence)
        return "another element's metadata";
    enum element_note note = atomic_load(&elements[sequence]);
    if (note == NOTE_RELEASED || note == NOTE_LOST || (note != NOTE_NONE && !frame->is_again))
        return "it was received and released before";
    /* A dead process may have received one more than it has noted. */
    if (sequence > *next || (sequence < *next && !frame->is_again))
        return "it does not follow the one before";
    *next = sequence == *next ? sequence + 1 : *next;
    return NULL;
}

/* The first element that no process of the place has received. */
static uint64_t find_next(const struct channel_part *part, const _Atomic uint8_t *elements) {
    uint64_t next = 1;

    while (next <= part->elements && atomic_load(&elements[next]) != NOTE_NONE)
        next++;
    return next;
}

/* Releases the oldest frame that is held. */
static int release_one(struct scene *scene, _Atomic uint8_t *elements) {
    const struct gpupool_frame frame = scene->held[0];

    atomic_store(&elements[frame.sequence], NOTE_RELEASING);
    if (gpupool_channel_release(scene->channel, &frame, scene->stream) < 0)
        return fail("release");
    atomic_store(&elements[frame.sequence], NOTE_RELEASED);
    memmove(scene->held, scene->held + 1, --scene->n_held * sizeof frame);
    return 0;
}

/* Receives one, and releases the oldest where as many are held as may be. Returns 0, a status, or -1: there is none any more. */
static int consume_one(struct scene *scene, unsigned place, struct consumer_notes *notes,
                       _Atomic uint8_t *elements, uint64_t *next) {
    struct timespec moment = {.tv_nsec = SHORT_NS};
    struct gpupool_channel_info info;
    struct gpupool_frame frame;

    int r = gpupool_channel_receive(scene->channel, scene->stream, WAIT_NS, &frame);
    if (r == GPUPOOL_E_ENDED)
        return -1;
    if (r == GPUPOOL_E_VACANT) {
        nanosleep(&moment, NULL);
        return 0;
    }
    if (r == GPUPOOL_E_LOST) {
        if (gpupool_channel_look(scene->channel, &info) < 0)
            return fail("look");
        for (uint64_t sequence = info.lost_first; sequence <= info.lost_last; sequence++)
            note_lost(scene->part, place, sequence);
        *next = info.lost_last >= *next ? info.lost_last + 1 : *next;
        return 0;
    }
    if (r < 0)
        return fail("receive");
    const char *wrong = check_order(&frame, elements, next);
    if (wrong != NULL)
        return say_wrong(place, frame.sequence, wrong);
    atomic_store(&elements[frame.sequence], NOTE_RECEIVED);
    atomic_fetch_add(frame.is_again ? &notes->again : &notes->received, 1);
    r = read_frame(scene, place, &frame, notes);
    if (r != 0)
        return r;
    scene->held[scene->n_held++] = frame;
    r = scene->n_held < HELD_MAX ? 0 : release_one(scene, elements);
    if (r != 0)
        return r;
    return scene->n_staged == STAGED_MAX ? check_staged(scene, place, notes) : 0;
}

int channel_kills_consume(const struct channel_part *part, unsigned place) {
    struct consumer_notes *notes = &part->notes->consumers[place - 1];
    _Atomic uint8_t *elements = notes_of(part, place);
    uint64_t next = find_next(part, elements);
    struct scene scene;

    int r = begin(&scene, part, place);
    while (r == 0)
        r = consume_one(&scene, place, notes, elements, &next);
    if (r != -1)
        return r;
    r = check_staged(&scene, place, notes);
    while (r == 0 && scene.n_held > 0)
        r = release_one(&scene, elements);
    return r != 0 ? r : end(&scene);
}
