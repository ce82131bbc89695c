/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/property/pairs.h"

#include <gpupool/pair.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/property/world.h"

enum side {
    HOST,
    DEVICE
};
static const char *const side_names[] = {"host", "device"};

struct side_model {
    void *data;
    uint64_t size_bytes, capacity_bytes;
    uint32_t owner;
    uint64_t known_bytes; /* the contents of so many first bytes are known */
    unsigned char *bytes; /* and these */
};

struct pair_model {
    bool is_live;
    struct gpupool_pair pair;
    unsigned number;
    unsigned device;
    bool zeroes;
    struct side_model sides[2];
    /* The stream that it is used on: its user orders one behind the other before it changes that. */
    const struct world_stream *stream;
    bool host_is_busy; /* the stream may be reading or writing the host side */
};

static struct pair_model pairs[WORLD_OBJECTS];

static struct gpupool_pair_side *side_of(struct pair_model *model, enum side side) {
    return side == HOST ? &model->pair.host : &model->pair.on_device;
}

/* The pair's description is the model's. */
static void compare(struct pair_model *model) {
    for (enum side side = HOST; side <= DEVICE; side++) {
        const struct gpupool_pair_side *is = side_of(model, side);
        const struct side_model *should = &model->sides[side];

        if (is->data != should->data || is->size_bytes != should->size_bytes ||
            is->capacity_bytes != should->capacity_bytes || is->owner != should->owner)
            world_fail("pair %u, %s side: %p, %llu of %llu bytes, owner %u; and should be %p, %llu of %llu "
                       "bytes, owner %u",
                       model->number, side_names[side], is->data, (unsigned long long)is->size_bytes,
                       (unsigned long long)is->capacity_bytes, is->owner, should->data,
                       (unsigned long long)should->size_bytes, (unsigned long long)should->capacity_bytes,
                       should->owner);
    }
    if (model->pair.device != (int32_t)model->device)
        world_fail("pair %u: it is on device %d, and should be on %u", model->number, model->pair.device,
                   model->device);
}

static void begin(struct pair_model *model) {
    uint32_t flags = world_one_in(3) ? GPUPOOL_PAIR_ZERO : 0;

    model->device = (unsigned)world_random(world.n_devices);
    model->zeroes = flags != 0;
    model->number = (unsigned)(model - pairs);
    world_tell("pair %u: new, device %u%s", model->number, model->device, model->zeroes ? ", zeroed" : "");
    int r = gpupool_pair_init(&model->pair, world.client, (int)model->device, flags);
    if (r != 0)
        world_fail("a pair: %s: %s", gpupool_error_name(r), gpupool_error_text());
    model->pair.timeout_ns = world.client->alloc_timeout_ns;
    for (enum side side = HOST; side <= DEVICE; side++) {
        unsigned char *bytes = model->sides[side].bytes;
        model->sides[side] = (struct side_model){.bytes = bytes != NULL ? bytes : malloc(WORLD_BYTES_MAX)};
        if (model->sides[side].bytes == NULL)
            world_break("no memory");
    }
    model->stream = NULL;
    model->host_is_busy = false;
    model->is_live = true;
}

/* The stream of this step: mostly the one before. */
static const struct world_stream *choose_stream(struct pair_model *model) {
    const struct world_stream *stream = model->stream;

    if (stream != NULL && stream->thread == world.thread && !world_one_in(5))
        return stream;
    if (stream != NULL)
        world_settle();
    model->host_is_busy = false;
    return model->stream = world_random_stream(model->device);
}

/* The CPU may touch the host side after this. */
static void leave_host_alone(struct pair_model *model) {
    if (model->host_is_busy)
        world_settle();
    model->host_is_busy = false;
}

/* Looks at what is known of a side, and writes something new to it. */
static void use(struct pair_model *model, enum side side, const struct world_stream *stream) {
    struct side_model *should = &model->sides[side];
    uint64_t known = should->known_bytes < should->size_bytes ? should->known_bytes : should->size_bytes;
    char what[64];

    snprintf(what, sizeof what, "pair %u, %s side", model->number, side_names[side]);
    if (side == HOST)
        leave_host_alone(model);
    if (side == HOST)
        world_expect(should->data, should->bytes, known, what);
    else
        world_expect_on_stream(model->device, should->data, should->bytes, known, stream, what);
    if (world_one_in(3))
        return;
    uint64_t written = world_one_in(2) ? should->size_bytes : 1 + world_random(should->size_bytes);
    world_make_bytes(should->bytes, written);
    if (side == HOST)
        memcpy(should->data, should->bytes, written);
    else
        world_write_on_stream(model->device, should->data, should->bytes, written, stream);
    if (written > should->known_bytes)
        should->known_bytes = written;
}

/* The model takes over the memory that a side got, which it cannot know beforehand. */
static void take_over(struct side_model *should, const struct gpupool_pair_side *is, uint64_t size_bytes) {
    /* Where the pool was full, what it had went back first, and may have become a part of what it got. */
    bool same = is->data == should->data && !world.is_tight;
    if (is->data == NULL || is->capacity_bytes < size_bytes || is->owner != GPUPOOL_OWNER_POOL || same)
        world_fail("asked for %llu bytes: %p with %llu, owner %u", (unsigned long long)size_bytes, is->data,
                   (unsigned long long)is->capacity_bytes, is->owner);
    should->data = is->data;
    should->capacity_bytes = is->capacity_bytes;
    should->owner = is->owner;
    should->known_bytes = 0;
}

/* Growth that found no room may have given up what there was, before it tried again. */
static void take_over_loss(struct side_model *should, const struct gpupool_pair_side *is, int result) {
    if ((result != GPUPOOL_E_EXHAUSTED && !world.is_tight) || should->owner != GPUPOOL_OWNER_POOL ||
        is->data != NULL)
        return;
    should->data = NULL;
    should->size_bytes = should->capacity_bytes = should->known_bytes = 0;
    should->owner = GPUPOOL_OWNER_NONE;
}

static void ask(struct pair_model *model, enum side side) {
    const struct world_stream *stream = choose_stream(model);
    struct side_model *should = &model->sides[side];
    uint64_t size_bytes = world_random_size(), before_bytes = should->capacity_bytes;
    bool grows = size_bytes > before_bytes, gave_back = should->owner == GPUPOOL_OWNER_POOL;
    void *memory = &memory;

    world_tell("pair %u: %s, %llu bytes, %s stream", model->number, side_names[side],
               (unsigned long long)size_bytes, world_stream_name(stream));
    world_library_begin(model->device, stream);
    int r = side == HOST ? gpupool_pair_host(&model->pair, size_bytes, &memory, stream->handle)
                         : gpupool_pair_device(&model->pair, size_bytes, &memory, stream->handle);
    if (!world_library_end(r, "asking a pair for memory")) {
        if (!grows)
            world_fail("pair %u: what is there was refused: %s", model->number, gpupool_error_text());
        take_over_loss(should, side_of(model, side), r);
        return;
    }
    if (!grows && world.sight.calls > 0)
        world_fail("pair %u: what is there took %llu calls of the driver", model->number,
                   (unsigned long long)world.sight.calls);
    if (world.sight.copies > 0)
        world_fail("pair %u: it copied by itself", model->number);
    should->size_bytes = size_bytes;
    if (grows) {
        take_over(should, side_of(model, side), size_bytes);
        if (gave_back)
            world_pass_stranger(side == DEVICE, model->device, before_bytes);
        if (side == HOST)
            model->host_is_busy = false; /* that was the memory before */
        if (model->zeroes) {
            should->known_bytes =
                should->capacity_bytes < WORLD_BYTES_MAX ? should->capacity_bytes : WORLD_BYTES_MAX;
            memset(should->bytes, 0, should->known_bytes);
        }
    }
    if (memory != should->data)
        world_fail("pair %u: it says %p, and has %p", model->number, memory, should->data);
    use(model, side, stream);
}

static void adopt(struct pair_model *model, enum side side) {
    static unsigned char bytes[WORLD_BYTES_MAX];
    const struct world_stream *stream = choose_stream(model);
    struct side_model *should = &model->sides[side];
    uint64_t size_bytes = world_random_size();
    struct adoptable *list = side == DEVICE    ? world.on_device[model->device]
                             : world_one_in(2) ? world.pinned
                                               : world.pageable;

    world_make_bytes(bytes, size_bytes);
    unsigned char *memory = world_adoptable(list, model->device, bytes, size_bytes);
    if (memory == NULL)
        return;
    world_tell("pair %u: adopt %llu bytes for the %s side, %s stream", model->number,
               (unsigned long long)size_bytes, side_names[side], world_stream_name(stream));
    world_library_begin(model->device, stream);
    int r = side == HOST ? gpupool_pair_adopt_host(&model->pair, memory, size_bytes, stream->handle)
                         : gpupool_pair_adopt_device(&model->pair, memory, size_bytes, stream->handle);
    if (!world_library_end(r, "adopting memory for a pair"))
        return;
    if (should->owner == GPUPOOL_OWNER_POOL)
        world_pass_stranger(side == DEVICE, model->device, should->capacity_bytes);
    if (side == HOST)
        model->host_is_busy = false;
    should->data = memory;
    should->size_bytes = should->capacity_bytes = should->known_bytes = size_bytes;
    should->owner = GPUPOOL_OWNER_USER;
    memcpy(should->bytes, bytes, size_bytes);
}

static void copy(struct pair_model *model, enum side to) {
    const struct world_stream *stream = choose_stream(model);
    struct side_model *target = &model->sides[to], *source = &model->sides[1 - to];
    uint64_t least =
        target->capacity_bytes < source->capacity_bytes ? target->capacity_bytes : source->capacity_bytes;
    uint64_t size_bytes = least > 0 && !world_one_in(8) ? 1 + world_random(least) : world_random_size();

    world_tell("pair %u: copy %llu bytes to %s, %s stream", model->number, (unsigned long long)size_bytes,
               side_names[to], world_stream_name(stream));
    world_library_begin(model->device, NULL); /* for a copy that is asked for does land in a capture */
    int r = to == HOST ? gpupool_pair_copy_to_host(&model->pair, size_bytes, stream->handle)
                       : gpupool_pair_copy_to_device(&model->pair, size_bytes, stream->handle);
    if (size_bytes > least && r == GPUPOOL_E_INVALID) {
        world_library_end(0, "copying");
        return;
    }
    if (!world_library_end(r, "copying between the sides of a pair"))
        return;
    if (size_bytes > least || world.sight.copies != 1 || world.sight.copied_bytes != size_bytes)
        world_fail("pair %u: %llu copies, of %llu bytes in all", model->number,
                   (unsigned long long)world.sight.copies, (unsigned long long)world.sight.copied_bytes);
    world.progress->tally.copies++;
    model->host_is_busy = true;
    uint64_t known = source->known_bytes < size_bytes ? source->known_bytes : size_bytes;
    memcpy(target->bytes, source->bytes, known);
    if (known < size_bytes)
        target->known_bytes = known;
    else if (target->known_bytes < known)
        target->known_bytes = known;
}

/* Empties one side, by its name or by adopting nothing. */
static void empty(struct pair_model *model, enum side side) {
    static unsigned char memory[1];
    const struct world_stream *stream = choose_stream(model);
    struct side_model *should = &model->sides[side];
    unsigned way = (unsigned)world_random(3);
    void *adopted = way == 1 ? NULL : memory;
    uint64_t size_bytes = way == 1 ? sizeof memory : 0;

    world_tell("pair %u: empty the %s side, %s stream", model->number, side_names[side],
               world_stream_name(stream));
    world_library_begin(model->device, stream);
    int r = side == HOST ? way == 0
                               ? gpupool_pair_clear_host(&model->pair, stream->handle)
                               : gpupool_pair_adopt_host(&model->pair, adopted, size_bytes, stream->handle)
            : way == 0 ? gpupool_pair_clear_device(&model->pair, stream->handle)
                         : gpupool_pair_adopt_device(&model->pair, adopted, size_bytes, stream->handle);
    if (!world_library_end(r, "emptying a side of a pair"))
        return;
    if (should->owner == GPUPOOL_OWNER_POOL)
        world_pass_stranger(side == DEVICE, model->device, should->capacity_bytes);
    if (side == HOST)
        model->host_is_busy = false;
    *should = (struct side_model){.bytes = should->bytes};
}

static bool end(struct pair_model *model) {
    const struct world_stream *stream = choose_stream(model);

    world_tell("pair %u: clear, %s stream", model->number, world_stream_name(stream));
    world_library_begin(model->device, stream);
    int r = gpupool_pair_clear(&model->pair, stream->handle);
    if (!world_library_end(r, "clearing a pair")) {
        /* One side may be gone. */
        for (enum side side = HOST; side <= DEVICE; side++)
            if (side_of(model, side)->data == NULL)
                model->sides[side] = (struct side_model){.bytes = model->sides[side].bytes};
        return false;
    }
    for (enum side side = HOST; side <= DEVICE; side++) {
        if (model->sides[side].owner == GPUPOOL_OWNER_POOL)
            world_pass_stranger(side == DEVICE, model->device, model->sides[side].capacity_bytes);
        model->sides[side] = (struct side_model){.bytes = model->sides[side].bytes};
    }
    compare(model);
    model->is_live = false;
    return true;
}

void pairs_step(void) {
    struct pair_model *model = &pairs[world_random(world.n_objects)];

    if (!model->is_live)
        begin(model);
    switch (world_random(14)) {
    case 0:
        adopt(model, HOST);
        break;
    case 1:
        adopt(model, DEVICE);
        break;
    case 2:
    case 3:
        copy(model, HOST);
        break;
    case 4:
    case 5:
        copy(model, DEVICE);
        break;
    case 6:
        end(model);
        break;
    case 7:
        empty(model, HOST);
        break;
    case 8:
        empty(model, DEVICE);
        break;
    case 9:
    case 10:
    case 11:
        ask(model, HOST);
        break;
    default:
        ask(model, DEVICE);
        break;
    }
    if (model->is_live)
        compare(model);
}

void pairs_end(void) {
    for (unsigned i = 0; i < WORLD_OBJECTS; i++) {
        for (unsigned tries = 0; pairs[i].is_live && !end(&pairs[i]); tries++)
            if (tries > 100)
                world_fail("pair %u cannot be cleared: %s", i, gpupool_error_text());
        for (enum side side = HOST; side <= DEVICE; side++) {
            free(pairs[i].sides[side].bytes);
            pairs[i].sides[side].bytes = NULL;
        }
    }
}
