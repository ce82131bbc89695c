/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/property/arrays.h"

#include <gpupool/pair.h>
#include <gpupool/synced.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/property/world.h"

#define TRIES_MAX 100u /* of a call that chance makes fail */

enum side {
    HOST,
    DEVICE
};

static const char *const state_names[] = {"uninitialised", "host newer", "device newer", "in step"};
static const char *const access_names[] = {"", "read", "write", "overwrite"};

struct array_model {
    struct gpupool_synced *array; /* NULL: there is none */
    unsigned number;
    uint64_t size_bytes;
    unsigned device;
    enum gpupool_synced_state state;
    unsigned char *bytes; /* the contents, unless uninitialised */
    uint64_t to_device, to_host, between_devices, zeroed;
    unsigned char *adopted[2]; /* what the side has to be at; NULL: of the pools */
    uint64_t adopted_bytes[2];
    const struct world_stream *last_stream; /* of the device copy; for the tally */
    /* Accesses for the device that still last: what is enqueued on these streams is waited for. */
    unsigned char *on_device;
    const struct world_stream *writer; /* NULL: none */
    unsigned readers;                  /* bits by the stream's number */
    struct gpupool_synced_info info;   /* as it was after the step before */
};

static struct array_model arrays[WORLD_OBJECTS];

static void forget_adopted(struct array_model *model, enum side side) {
    model->adopted[side] = NULL;
    model->adopted_bytes[side] = 0;
}

/* A stranger writes at once to the memory that the array gave up in this step. */
static void pass_strangers(const struct gpupool_synced_info *was, const struct gpupool_synced_info *is) {
    if (was->device < 0)
        return; /* it is new */
    if (was->host_owner == GPUPOOL_OWNER_POOL &&
        (is->host_owner != GPUPOOL_OWNER_POOL || is->host_capacity_bytes != was->host_capacity_bytes))
        world_pass_stranger(false, (unsigned)was->device, was->host_capacity_bytes);
    if (was->device_owner == GPUPOOL_OWNER_POOL &&
        (is->device_owner != GPUPOOL_OWNER_POOL || is->device_capacity_bytes != was->device_capacity_bytes ||
         is->device != was->device))
        world_pass_stranger(true, (unsigned)was->device, was->device_capacity_bytes);
}

/* The array's description is the model's. */
static void compare(struct array_model *model, const char *after) {
    struct gpupool_synced_info is = {0};
    int r = gpupool_synced_query(model->array, &is);

    if (r != 0)
        world_fail("array %u, after %s: no information: %s", model->number, after, gpupool_error_text());
    if (is.state != model->state)
        world_fail("array %u, after %s: it is %s, and should be %s", model->number, after,
                   is.state < 4 ? state_names[is.state] : "?", state_names[model->state]);
    if (is.size_bytes != model->size_bytes || is.device != (int32_t)model->device)
        world_fail("array %u, after %s: %llu bytes on device %d, and should be %llu on %u", model->number,
                   after, (unsigned long long)is.size_bytes, is.device, (unsigned long long)model->size_bytes,
                   model->device);
    if (is.copies_to_device != model->to_device || is.copies_to_host != model->to_host ||
        is.copies_between_devices != model->between_devices)
        world_fail("array %u, after %s: %llu copies to the device, %llu to the host, %llu between devices; "
                   "and should be "
                   "%llu, %llu, %llu",
                   model->number, after, (unsigned long long)is.copies_to_device,
                   (unsigned long long)is.copies_to_host, (unsigned long long)is.copies_between_devices,
                   (unsigned long long)model->to_device, (unsigned long long)model->to_host,
                   (unsigned long long)model->between_devices);
    if (is.zeroed != model->zeroed)
        world_fail("array %u, after %s: a side was zeroed %llu times, and should have been %llu times",
                   model->number, after, (unsigned long long)is.zeroed, (unsigned long long)model->zeroed);
    const uint32_t owners[] = {is.host_owner, is.device_owner};
    for (enum side side = HOST; side <= DEVICE; side++) {
        /* Memory that has become too small is replaced by an access that needs more, even if that fails
         * later. */
        if (model->size_bytes > model->adopted_bytes[side] && owners[side] != GPUPOOL_OWNER_USER)
            forget_adopted(model, side);
        if ((owners[side] == GPUPOOL_OWNER_USER) != (model->adopted[side] != NULL))
            world_fail("array %u, after %s: the owner of side %u is %u", model->number, after, side,
                       owners[side]);
    }
    pass_strangers(&model->info, &is);
    model->info = is;
}

/* That the step before asked the driver for these copies and no others. */
static void expect_copies(const struct array_model *model, const char *after, unsigned copies) {
    if (world.sight.copies != copies || world.sight.copied_bytes != copies * model->size_bytes)
        world_fail("array %u, %s: %llu copies of %llu bytes in all, where %u of %llu was needed",
                   model->number, after, (unsigned long long)world.sight.copies,
                   (unsigned long long)world.sight.copied_bytes, copies,
                   (unsigned long long)model->size_bytes);
    world.progress->tally.copies += copies;
}

/* Another access reads the array: its writer has ended. */
static void end_writing(struct array_model *model) {
    model->writer = NULL;
}

/* Another access writes to the array: its writer and its readers have ended. */
static void end_access(struct array_model *model) {
    model->writer = NULL;
    model->readers = 0;
}

static void note_access(struct array_model *model, enum side side, enum gpupool_access access, void *memory,
                        const struct world_stream *stream) {
    if (side == HOST || stream != model->writer)
        end_writing(model);
    if (access != GPUPOOL_READ)
        end_access(model);
    if (side == HOST)
        return;
    if (model->last_stream != NULL && model->last_stream != stream)
        world.progress->tally.across_streams++;
    model->last_stream = stream;
    model->on_device = memory;
    model->readers |= 1u << stream->number;
    if (access != GPUPOOL_READ)
        model->writer = stream;
}

static void begin(struct array_model *model) {
    unsigned char *bytes = model->bytes != NULL ? model->bytes : malloc(WORLD_BYTES_MAX);

    if (bytes == NULL)
        world_break("no memory");
    *model = (struct array_model){
        .number = (unsigned)(model - arrays),
        .size_bytes = world_random_size(),
        .device = (unsigned)world_random(world.n_devices),
        .bytes = bytes,
        .info.device = -1,
    };
    world_tell("array %u: new, %llu bytes, device %u", model->number, (unsigned long long)model->size_bytes,
               model->device);
    int r = gpupool_synced_create(world.client, (int)model->device, model->size_bytes, &model->array);
    if (r != 0)
        world_fail("an array: %s: %s", gpupool_error_name(r), gpupool_error_text());
}

/* Writes new bytes to the model and to memory: all of it, or a part in the middle. */
static void write_some(struct array_model *model, enum side side, bool all, unsigned char *memory,
                       const struct world_stream *stream) {
    uint64_t from = all || world_one_in(2) ? 0 : world_random(model->size_bytes);
    uint64_t size_bytes = all ? model->size_bytes : 1 + world_random(model->size_bytes - from);

    world_make_bytes(model->bytes + from, size_bytes);
    if (side == HOST)
        memcpy(memory + from, model->bytes + from, size_bytes);
    else
        world_write_on_stream(model->device, memory + from, model->bytes + from, size_bytes, stream);
}

/* Asks again for a side that is up to date, on its stream or from the CPU: that takes no driver call. */
static void ask_again(struct array_model *model, enum side side, const void *memory,
                      const struct world_stream *stream, const char *what) {
    struct spy_sight sight;
    void *again = NULL;

    spy_begin(SPY_ANY, 0, false);
    int r = side == HOST ? gpupool_synced_host(model->array, GPUPOOL_READ, &again, stream->handle)
                         : gpupool_synced_device(model->array, GPUPOOL_READ, &again, stream->handle);
    spy_end(&sight);
    if (r != 0 || again != memory || sight.calls > 0)
        world_fail("%s; and again: %s, %p after %p, %llu driver calls", what, gpupool_error_name(r), again,
                   memory, (unsigned long long)sight.calls);
}

static bool access_side(struct array_model *model, enum side side, enum gpupool_access access,
                        const struct world_stream *stream) {
    enum gpupool_synced_state newer = side == HOST ? GPUPOOL_SYNCED_HOST_NEWER : GPUPOOL_SYNCED_DEVICE_NEWER;
    enum gpupool_synced_state older = side == HOST ? GPUPOOL_SYNCED_DEVICE_NEWER : GPUPOOL_SYNCED_HOST_NEWER;
    bool copies = access != GPUPOOL_OVERWRITE && model->state == older;
    bool zeroes = access != GPUPOOL_OVERWRITE && model->state == GPUPOOL_SYNCED_UNINITIALIZED;
    bool has_bytes = model->size_bytes > 0;
    void *memory = NULL;
    char what[96];

    snprintf(what, sizeof what, "array %u, %s for the %s, %s stream", model->number, access_names[access],
             side == HOST ? "host" : "device", world_stream_name(stream));
    world_tell("%s (%s)", what, state_names[model->state]);
    world_library_begin(model->device, stream);
    int r = side == HOST ? gpupool_synced_host(model->array, access, &memory, stream->handle)
                         : gpupool_synced_device(model->array, access, &memory, stream->handle);
    if (!world_library_end(r, what)) {
        end_access(model); /* how far it came is not said */
        return false;
    }
    expect_copies(model, what, copies && has_bytes ? 1 : 0);
    if (zeroes && has_bytes) {
        memset(model->bytes, 0, model->size_bytes);
        model->zeroed++;
        world.progress->tally.zeroed++;
    }
    if (copies && has_bytes && side == HOST)
        model->to_host++;
    else if (copies && has_bytes)
        model->to_device++;
    if (access != GPUPOOL_READ || zeroes)
        model->state = newer;
    else if (copies)
        model->state = GPUPOOL_SYNCED_IN_STEP;
    if (world_one_in(4))
        ask_again(model, side, memory, stream, what);
    note_access(model, side, access, memory, stream);
    if (model->size_bytes > model->adopted_bytes[side])
        forget_adopted(model, side);
    if ((memory == NULL && has_bytes) || (model->adopted[side] != NULL && memory != model->adopted[side]))
        world_fail("%s: it gave %p where %p was adopted", what, memory, (void *)model->adopted[side]);
    if (!has_bytes)
        return true;
    if (access != GPUPOOL_OVERWRITE && side == HOST)
        world_expect(memory, model->bytes, model->size_bytes, what);
    else if (access != GPUPOOL_OVERWRITE)
        world_expect_on_stream(model->device, memory, model->bytes, model->size_bytes, stream, what);
    if (access != GPUPOOL_READ)
        write_some(model, side, access == GPUPOOL_OVERWRITE, memory, stream);
    return true;
}

/* More work within an access that was granted some steps ago. */
static void use_late(struct array_model *model) {
    const struct world_stream *stream = world_random_stream(model->device);
    char what[96];

    if (model->size_bytes == 0)
        return;
    if (stream == model->writer && world_one_in(2)) {
        world_tell("array %u: write more, %s stream", model->number, world_stream_name(stream));
        write_some(model, DEVICE, false, model->on_device, stream);
    } else if ((model->readers >> stream->number & 1) != 0) {
        snprintf(what, sizeof what, "array %u, reading more, %s stream", model->number,
                 world_stream_name(stream));
        world_tell("%s", what);
        world_expect_on_stream(model->device, model->on_device, model->bytes, model->size_bytes, stream,
                               what);
    }
}

static void push_or_pull(struct array_model *model, bool push, const struct world_stream *stream) {
    enum gpupool_synced_state needs = push ? GPUPOOL_SYNCED_HOST_NEWER : GPUPOOL_SYNCED_DEVICE_NEWER;
    bool copies = model->state == needs;
    const char *what = push ? "push" : "pull";

    world_tell("array %u: %s, %s stream (%s)", model->number, what, world_stream_name(stream),
               state_names[model->state]);
    end_writing(model);
    world_library_begin(model->device, stream);
    int r = push ? gpupool_synced_push(model->array, stream->handle)
                 : gpupool_synced_pull(model->array, stream->handle);
    if (!world_library_end(r, what))
        return;
    expect_copies(model, what, copies && model->size_bytes > 0 ? 1 : 0);
    if (!copies)
        return;
    model->state = GPUPOOL_SYNCED_IN_STEP;
    if (model->size_bytes == 0)
        return;
    if (push)
        model->to_device++;
    else
        model->to_host++;
}

static void resize(struct array_model *model) {
    uint64_t size_bytes = world_one_in(8)                            ? 0
                          : world_one_in(2) && model->size_bytes > 0 ? 1 + world_random(model->size_bytes)
                                                                     : world_random_size();

    world_tell("array %u: resize from %llu to %llu bytes", model->number,
               (unsigned long long)model->size_bytes, (unsigned long long)size_bytes);
    world_library_begin(model->device, NULL);
    int r = gpupool_synced_resize(model->array, size_bytes);
    if (!world_library_end(r, "resizing"))
        return;
    expect_copies(model, "resizing", 0);
    if (size_bytes > model->size_bytes) {
        model->state = GPUPOOL_SYNCED_UNINITIALIZED;
        end_access(model);
    }
    model->size_bytes = size_bytes;
}

static void adopt(struct array_model *model, enum side side) {
    static unsigned char bytes[WORLD_BYTES_MAX];
    const struct world_stream *stream = world_random_stream(model->device);
    struct adoptable *list = side == DEVICE    ? world.on_device[model->device]
                             : world_one_in(2) ? world.pinned
                                               : world.pageable;

    if (model->size_bytes == 0)
        return;
    world_make_bytes(bytes, model->size_bytes);
    unsigned char *memory = world_adoptable(list, model->device, bytes, model->size_bytes);
    if (memory == NULL)
        return;
    world_tell("array %u: adopt %s memory, %s stream (%s)", model->number,
               side == DEVICE         ? "device"
               : list == world.pinned ? "pinned"
                                      : "pageable",
               world_stream_name(stream), state_names[model->state]);
    end_access(model);
    world_library_begin(model->device, stream);
    int r = side == HOST ? gpupool_synced_adopt_host(model->array, memory, stream->handle)
                         : gpupool_synced_adopt_device(model->array, memory, stream->handle);
    if (!world_library_end(r, "adopting"))
        return;
    expect_copies(model, "adopting", 0);
    memcpy(model->bytes, bytes, model->size_bytes);
    model->adopted[side] = memory;
    model->adopted_bytes[side] = model->size_bytes;
    model->state = side == HOST ? GPUPOOL_SYNCED_HOST_NEWER : GPUPOOL_SYNCED_DEVICE_NEWER;
}

static void move(struct array_model *model) {
    unsigned device = (unsigned)world_random(world.n_devices);
    const struct world_stream *stream = world_random_stream(device);
    bool copies =
        device != model->device && model->state == GPUPOOL_SYNCED_DEVICE_NEWER && model->size_bytes > 0;

    world_tell("array %u: move from device %u to %u, %s stream (%s)", model->number, model->device, device,
               world_stream_name(stream), state_names[model->state]);
    end_access(model);
    world_library_begin(device, stream);
    int r = gpupool_synced_move(model->array, (int)device, stream->handle);
    if (!world_library_end(r, "moving"))
        return;
    expect_copies(model, "moving", copies ? 1 : 0);
    if (device == model->device)
        return;
    if (copies) {
        model->between_devices++;
        world.progress->tally.across_devices++;
    } else if (model->state == GPUPOOL_SYNCED_IN_STEP) {
        model->state = GPUPOOL_SYNCED_HOST_NEWER;
    }
    model->device = device;
    forget_adopted(model, DEVICE);
}

static void settle(struct array_model *model) {
    world_tell("array %u: settle", model->number);
    end_access(model);
    world_library_begin(model->device, world_random_stream(model->device));
    if (world_library_end(gpupool_synced_settle(model->array), "settling"))
        expect_copies(model, "settling", 0);
}

/* Streams that read do not wait for each other: one comes through while the other stands still. */
static void read_beside(struct array_model *model, const struct world_stream *held) {
    const struct world_stream *other = world_random_stream(model->device);

    if (other == held || !access_side(model, DEVICE, GPUPOOL_READ, held))
        return;
    world_hold(model->device, held);
    uint64_t begin_ns = clock_now_ns();
    bool read = access_side(model, DEVICE, GPUPOOL_READ, other);
    uint64_t call_ns = clock_now_ns() - begin_ns;
    bool through = read && world_comes_through(model->device, other);
    if (!world_let_go() || through != read)
        world_fail("array %u: reading on the %s stream waited for a reader on the %s stream (call: %.3f s)",
                   model->number, world_stream_name(other), world_stream_name(held), (double)call_ns / 1e9);
}

/* The CPU waits for the copy that it needs, and not for what stands behind that. */
static void read_before(struct array_model *model, const struct world_stream *held) {
    if (!access_side(model, DEVICE, GPUPOOL_WRITE, held))
        return;
    push_or_pull(model, false, held);
    if (model->state != GPUPOOL_SYNCED_IN_STEP)
        return;
    world_hold(model->device, held);
    access_side(model, HOST, GPUPOOL_READ, held);
    if (!world_let_go())
        world_fail("array %u: the CPU waited for more than the copy on the %s stream", model->number,
                   world_stream_name(held));
}

/* While a stream stands still, calls that need not wait for it return. The array has no other users then, and
 * no driver call fails: an array that cannot leave a fence waits for the whole stream. */
static void wait_for_no_more(struct array_model *model) {
    const struct world_stream *held = &world.streams[model->device][WORLD_STREAMS - 1];
    bool has_failures = world.has_failures, has_captures = world.has_captures;

    world.has_failures = world.has_captures = false;
    settle(model);
    world_settle(); /* and need not before the stream goes on */
    if (world_one_in(2))
        read_beside(model, held);
    else
        read_before(model, held);
    world.has_failures = has_failures;
    world.has_captures = has_captures;
}

/* A failure may have cost the array its contents, and leaves an array to be destroyed. */
static void end(struct array_model *model) {
    for (unsigned tries = 0; model->array != NULL; tries++) {
        const struct world_stream *stream = world_random_stream(model->device);

        if (tries > TRIES_MAX)
            world_fail("array %u cannot be destroyed: %s", model->number, gpupool_error_text());
        world_tell("array %u: destroy, %s stream", model->number, world_stream_name(stream));
        world_library_begin(model->device, stream);
        if (!world_library_end(gpupool_synced_destroy(model->array, stream->handle), "destroying"))
            continue;
        expect_copies(model, "destroying", 0);
        model->array = NULL;
        pass_strangers(&model->info, &(struct gpupool_synced_info){0});
    }
}

static enum gpupool_access random_access(void) {
    return world_one_in(2) ? GPUPOOL_READ : world_one_in(2) ? GPUPOOL_WRITE : GPUPOOL_OVERWRITE;
}

void arrays_step(void) {
    struct array_model *model = &arrays[world_random(world.n_objects)];

    if (model->array == NULL)
        begin(model);
    switch (world_random(24)) {
    case 0:
    case 1:
        resize(model);
        break;
    case 2:
        adopt(model, HOST);
        break;
    case 3:
        adopt(model, DEVICE);
        break;
    case 4:
    case 5:
        push_or_pull(model, true, world_random_stream(model->device));
        break;
    case 6:
    case 7:
        push_or_pull(model, false, world_random_stream(model->device));
        break;
    case 8:
        move(model);
        break;
    case 9:
        if (world_one_in(4))
            wait_for_no_more(model);
        else if (world_one_in(2))
            settle(model);
        else
            end(model);
        break;
    case 10:
    case 11:
    case 12:
        use_late(model);
        return;
    case 13:
    case 14:
    case 15:
    case 16:
        access_side(model, HOST, random_access(), world_random_stream(model->device));
        break;
    default:
        access_side(model, DEVICE, random_access(), world_random_stream(model->device));
        break;
    }
    if (model->array != NULL)
        compare(model, "that");
}

void arrays_end(void) {
    for (unsigned i = 0; i < WORLD_OBJECTS; i++) {
        end(&arrays[i]);
        free(arrays[i].bytes);
        arrays[i].bytes = NULL;
    }
}
