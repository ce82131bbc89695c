/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronised arrays: the calls of <gpupool/synced.h>. What an access takes says synced_step(); here it is
 * done, in this order, and what failed has changed nothing that counts:
 *
 * 1. a stream that is captured is refused, if anything at all would be enqueued on it;
 * 2. the side gets its memory (synced_memory.h);
 * 3. its contents are copied or zeroed, behind whom that has to come, and noted as a use (synced_usage.h);
 * 4. the stream, or the CPU, is brought behind whom the access itself has to come;
 * 5. the access is noted, and the state is the new one.
 *
 * An access that needs none of this is answered before, from what lies in the array: no lock, no driver call.
 * It does not end with error_end() either: the address of a thread-local variable would cost a quarter of its
 * time.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "client/buffer.h"
#include "client/client.h"
#include "client/error.h"
#include "client/synced_memory.h"
#include "client/synced_order.h"

struct gpupool_synced {
    struct gpupool_client *client; /* borrowed */
    const struct gpu *gpu;
    uint64_t size_bytes;
    unsigned device;
    enum gpupool_synced_state state;
    struct synced_memory sides[2]; /* by enum synced_side. Of one that is good, at least size_bytes */
    uint64_t copies_to[2], copies_between_devices, zeroed;
};

/* --- what every call begins and ends with --- */

static int enter(const struct gpupool_synced *array) {
    return array == NULL ? error_set(GPUPOOL_E_INVALID, "no array") : client_enter(array->client);
}

static int enter_on(const struct gpupool_synced *array, const void *stream) {
    int r = enter(array);
    if (r == 0 && stream == GPUPOOL_NO_STREAM)
        return error_set(GPUPOOL_E_INVALID,
                         "GPUPOOL_NO_STREAM orders nothing: a stream of the device is needed");
    return r;
}

static int fail(int error, const char *doing, const struct gpupool_synced *array) {
    return array == NULL ? error_prefix(error, "%s a synchronised array", doing)
                         : error_prefix(error, "%s a synchronised array of %s on device %u", doing,
                                        BYTES_TEXT(array->size_bytes), array->device);
}

static int fail_driver(const struct gpupool_synced *array, int error, const char *what) {
    return devices_fail(array->gpu, error, what);
}

static int no_memory(void) {
    return error_set(GPUPOOL_E_NO_MEMORY, "no memory for bookkeeping");
}

static bool is_access(enum gpupool_access access) {
    return access == GPUPOOL_READ || access == GPUPOOL_WRITE || access == GPUPOOL_OVERWRITE;
}

/* --- making contents --- */

static int copy(struct gpupool_synced *array, enum synced_side side, const struct synced_stream *by) {
    struct synced_memory *to = &array->sides[side], *from = &array->sides[!side];
    struct fence fence;

    if (usage_reserve(&from->usage) < 0)
        return no_memory();
    int r = synced_order(array->client, &from->usage, by, false);
    if (r == 0)
        r = synced_order(array->client, &to->usage, by, true);
    if (r < 0)
        return r;
    int error = array->gpu->memory_copy(by->device, to->data, from->data, array->size_bytes, by->handle);
    if (error != 0)
        return fail_driver(array, error,
                           side == SYNCED_DEVICE ? "copying to the device" : "copying to the host");
    const struct fence *behind = synced_leave_fence(array->client, by, &fence) ? &fence : NULL;
    usage_note_read(&from->usage, by, behind);
    usage_note_write(&to->usage, by, behind);
    return 0;
}

static int zero(struct gpupool_synced *array, enum synced_side side, const struct synced_stream *by) {
    struct synced_memory *memory = &array->sides[side];
    struct fence fence;
    int r;

    if (side == SYNCED_HOST) {
        r = synced_wait(array->client, &memory->usage, true);
        if (r == 0)
            memset(memory->data, 0, array->size_bytes);
        return r;
    }
    r = synced_order(array->client, &memory->usage, by, true);
    if (r < 0)
        return r;
    int error = array->gpu->memory_set(by->device, memory->data, 0, array->size_bytes, by->handle);
    if (error != 0)
        return fail_driver(array, error, "zeroing");
    usage_note_write(&memory->usage, by, synced_leave_fence(array->client, by, &fence) ? &fence : NULL);
    return 0;
}

/* Whether a step enqueues anything on its stream, but for what memory that is too small leaves there. */
static bool must_enqueue(struct gpupool_synced *array, enum synced_side side, const struct synced_step *step,
                         const struct synced_stream *by) {
    if (step->fill == SYNCED_COPY)
        return true;
    return side == SYNCED_DEVICE &&
           (step->fill == SYNCED_ZERO ||
            synced_must_order(array->client, &array->sides[side].usage, by, step->writes));
}

/* Does what comes before the access itself. */
static int prepare(struct gpupool_synced *array, enum synced_side side, const struct synced_step *step,
                   const struct synced_stream *by) {
    int r = 0;

    if (must_enqueue(array, side, step, by))
        r = devices_check_stream(array->gpu, by->device, by->handle);
    if (r == 0 && step->needs_memory)
        r = memory_need(array->client, &array->sides[side], side, array->size_bytes, by);
    if (r == 0 && step->fill == SYNCED_COPY)
        r = copy(array, side, by);
    if (r == 0 && step->fill == SYNCED_ZERO)
        r = zero(array, side, by);
    return r;
}

static void commit(struct gpupool_synced *array, enum synced_side side, const struct synced_step *step) {
    array->state = step->after;
    array->copies_to[side] += step->fill == SYNCED_COPY;
    array->zeroed += step->fill == SYNCED_ZERO;
}

/* --- access --- */

static int access_host(struct gpupool_synced *array, enum gpupool_access access,
                       const struct synced_stream *by) {
    struct synced_step step = synced_step(array->state, SYNCED_HOST, access);

    int r = prepare(array, SYNCED_HOST, &step, by);
    if (r == 0)
        r = synced_wait(array->client, &array->sides[SYNCED_HOST].usage, step.writes);
    if (r == 0)
        commit(array, SYNCED_HOST, &step);
    return r;
}

static int access_device(struct gpupool_synced *array, enum gpupool_access access,
                         const struct synced_stream *by) {
    struct synced_step step = synced_step(array->state, SYNCED_DEVICE, access);
    struct synced_usage *usage = &array->sides[SYNCED_DEVICE].usage;

    if (usage_reserve(usage) < 0)
        return no_memory();
    int r = prepare(array, SYNCED_DEVICE, &step, by);
    if (r == 0)
        r = synced_order(array->client, usage, by, step.writes);
    if (r < 0)
        return r;
    if (step.writes)
        usage_note_write(usage, by, NULL);
    else
        usage_note_read(usage, by, NULL);
    commit(array, SYNCED_DEVICE, &step);
    return 0;
}

static bool may_be_at_once(const struct gpupool_synced *array, enum synced_side side,
                           enum gpupool_access access) {
    if (access == GPUPOOL_OVERWRITE ? array->size_bytes > array->sides[side].capacity_bytes
                                    : !synced_is_good(array->state, side))
        return false;
    return is_access(access) && !fork_guard_is_child(&array->client->guard);
}

static bool host_at_once(struct gpupool_synced *array, enum gpupool_access access) {
    const struct synced_usage *usage = &array->sides[SYNCED_HOST].usage;

    if (usage->has_writer || (access != GPUPOOL_READ && usage->count > 0) ||
        !may_be_at_once(array, SYNCED_HOST, access))
        return false;
    if (access != GPUPOOL_READ)
        array->state = GPUPOOL_SYNCED_HOST_NEWER;
    return true;
}

int gpupool_synced_host(struct gpupool_synced *array, enum gpupool_access access, void **ret_memory,
                        void *stream) {
    if (array != NULL && ret_memory != NULL && stream != GPUPOOL_NO_STREAM && host_at_once(array, access)) {
        *ret_memory = array->sides[SYNCED_HOST].data;
        return 0;
    }
    int r = enter_on(array, stream);
    if (r == 0 && (!is_access(access) || ret_memory == NULL))
        r = error_set(GPUPOOL_E_INVALID, "access %u, or ret_memory is NULL", (unsigned)access);
    if (r == 0) {
        struct synced_stream by = synced_stream_of(array->device, stream);
        r = access_host(array, access, &by);
    }
    if (r < 0)
        return fail(r, "host access to", array);
    *ret_memory = array->sides[SYNCED_HOST].data;
    return error_end(0);
}

static bool device_at_once(struct gpupool_synced *array, enum gpupool_access access,
                           const struct synced_stream *by) {
    struct synced_usage *usage = &array->sides[SYNCED_DEVICE].usage;

    if (!may_be_at_once(array, SYNCED_DEVICE, access))
        return false;
    if (access == GPUPOOL_READ)
        return usage_read_at_once(usage, by);
    if (!usage_write_at_once(usage, by))
        return false;
    array->state = GPUPOOL_SYNCED_DEVICE_NEWER;
    return true;
}

int gpupool_synced_device(struct gpupool_synced *array, enum gpupool_access access, void **ret_memory,
                          void *stream) {
    struct synced_stream by;

    if (array != NULL && ret_memory != NULL) {
        by = synced_stream_of(array->device, stream);
        if (device_at_once(array, access, &by)) { /* never of GPUPOOL_NO_STREAM, which uses nothing */
            *ret_memory = array->sides[SYNCED_DEVICE].data;
            return 0;
        }
    }
    int r = enter_on(array, stream);
    if (r == 0 && (!is_access(access) || ret_memory == NULL))
        r = error_set(GPUPOOL_E_INVALID, "access %u, or ret_memory is NULL", (unsigned)access);
    if (r == 0)
        r = access_device(array, access, &by);
    if (r < 0)
        return fail(r, "device access to", array);
    *ret_memory = array->sides[SYNCED_DEVICE].data;
    return error_end(0);
}

static int fetch(struct gpupool_synced *array, enum synced_side side, void *stream) {
    int r = enter_on(array, stream);
    if (r < 0)
        return r;
    struct synced_step step = synced_step(array->state, side, SYNCED_FETCH);
    struct synced_stream by = synced_stream_of(array->device, stream);
    if (step.fill == SYNCED_KEEP)
        return 0;
    r = prepare(array, side, &step, &by);
    if (r == 0)
        commit(array, side, &step);
    return r;
}

int gpupool_synced_push(struct gpupool_synced *array, void *stream) {
    int r = fetch(array, SYNCED_DEVICE, stream);
    return error_end(r < 0 ? fail(r, "pushing", array) : 0);
}

int gpupool_synced_pull(struct gpupool_synced *array, void *stream) {
    int r = fetch(array, SYNCED_HOST, stream);
    return error_end(r < 0 ? fail(r, "pulling", array) : 0);
}

/* --- size, place, memory of the user's --- */

int gpupool_synced_resize(struct gpupool_synced *array, uint64_t size_bytes) {
    if (array == NULL || size_bytes == 0)
        return error_set(GPUPOOL_E_INVALID, "gpupool_synced_resize: no array, or 0 bytes");
    if (size_bytes > array->size_bytes)
        array->state = GPUPOOL_SYNCED_UNINITIALIZED;
    array->size_bytes = size_bytes;
    return 0;
}

static int adopt(struct gpupool_synced *array, enum synced_side side, void *data, void *stream) {
    int r = enter_on(array, stream);
    if (r == 0 && data == NULL)
        r = error_set(GPUPOOL_E_INVALID, "no memory to adopt");
    if (r < 0)
        return r;
    if ((uintptr_t)data + array->size_bytes < (uintptr_t)data)
        return error_set(GPUPOOL_E_INVALID, "there are no %s at %p", BYTES_TEXT(array->size_bytes), data);
    if (memory_overlaps(&array->sides[SYNCED_HOST], data, array->size_bytes) ||
        memory_overlaps(&array->sides[SYNCED_DEVICE], data, array->size_bytes))
        return error_set(GPUPOOL_E_INVALID, "the memory to adopt is the pool's, and the array's already");
    struct synced_memory *memory = &array->sides[side];
    struct synced_stream by = synced_stream_of(array->device, stream);
    bool is_known = data == memory->data && synced_must_order(array->client, &memory->usage, NULL, true);
    r = memory_adopt(array->client, memory, data, array->size_bytes, &by);
    if (r < 0)
        return r;
    /* Device memory is written by the stream's earlier work; and whoever used this memory here before, the
     * stream comes behind now. */
    if (side == SYNCED_DEVICE || is_known)
        usage_note_write(&memory->usage, &by, NULL);
    array->state = synced_newer(side);
    return 0;
}

int gpupool_synced_adopt_host(struct gpupool_synced *array, void *memory, void *stream) {
    int r = adopt(array, SYNCED_HOST, memory, stream);
    return error_end(r < 0 ? fail(r, "adopting host memory for", array) : 0);
}

int gpupool_synced_adopt_device(struct gpupool_synced *array, void *memory, void *stream) {
    int r = adopt(array, SYNCED_DEVICE, memory, stream);
    return error_end(r < 0 ? fail(r, "adopting device memory for", array) : 0);
}

/* Gives memory back that does not become the array's, whatever else fails: if need be, when the copy is over
 * that may be under way there. */
static void discard(struct gpupool_synced *array, struct synced_memory *memory,
                    const struct synced_stream *by) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    if (memory_drop(array->client, memory, by) < 0) {
        /* A device that cannot be waited for does no work any more. */
        (void)array->gpu->stream_synchronize(by->device, by->handle);
        buffer_give_back(array->client, &memory->buffer);
    }
    error_restore(text);
    memory_deinit(memory);
}

/* Puts a copy of the device memory, on the stream's device, in its place. */
static int move_contents(struct gpupool_synced *array, const struct synced_stream *by) {
    struct gpupool_client *client = array->client;
    struct synced_memory *from = &array->sides[SYNCED_DEVICE], to = {0};
    struct fence fence;

    int r = devices_check_stream(array->gpu, by->device, by->handle);
    if (r == 0)
        r = usage_reserve(&from->usage) < 0 ? no_memory() : 0;
    if (r == 0)
        r = memory_need(client, &to, SYNCED_DEVICE, array->size_bytes, by);
    if (r < 0)
        return r;
    r = synced_order(client, &from->usage, by, false);
    if (r == 0) {
        int error = array->gpu->memory_copy(by->device, to.data, from->data, array->size_bytes, by->handle);
        if (error != 0)
            r = fail_driver(array, error, "copying from device to device");
    }
    if (r == 0) {
        const struct fence *behind = synced_leave_fence(client, by, &fence) ? &fence : NULL;
        usage_note_read(&from->usage, by, behind);
        usage_note_write(&to.usage, by, behind);
        r = memory_drop(client, from, by);
    }
    if (r < 0) {
        discard(array, &to, by);
        return r;
    }
    memory_deinit(from);
    *from = to;
    array->copies_between_devices++;
    return 0;
}

static int move(struct gpupool_synced *array, int device, void *stream) {
    const struct gpu *gpu;
    unsigned current;
    uint32_t pool;

    int r = enter_on(array, stream);
    if (r < 0)
        return r;
    if (device == -1) {
        int error = array->gpu->device_current(&current);
        if (error != 0)
            return fail_driver(array, error, "asking for the current device");
        device = (int)current;
    }
    r = devices_need_device(&array->client->devices, device, &gpu);
    if (r < 0)
        return r;
    if ((unsigned)device == array->device)
        return 0;
    r = gpupool_device_pool(array->client, device, &pool); /* there is memory to be had */
    if (r < 0)
        return r;
    struct synced_stream by = synced_stream_of((unsigned)device, stream);
    if (array->state == GPUPOOL_SYNCED_DEVICE_NEWER)
        r = move_contents(array, &by);
    else
        r = memory_drop(array->client, &array->sides[SYNCED_DEVICE], &by);
    if (r < 0)
        return r;
    if (array->state == GPUPOOL_SYNCED_IN_STEP)
        array->state = GPUPOOL_SYNCED_HOST_NEWER;
    array->device = (unsigned)device;
    return 0;
}

int gpupool_synced_move(struct gpupool_synced *array, int device, void *stream) {
    int r = move(array, device, stream);
    return error_end(r < 0 ? fail(r, "moving", array) : 0);
}

/* --- ends and questions --- */

static int settle(struct gpupool_synced *array) {
    int r = enter(array);
    for (unsigned side = 0; r == 0 && side < 2; side++)
        r = synced_wait(array->client, &array->sides[side].usage, true);
    return r;
}

int gpupool_synced_settle(struct gpupool_synced *array) {
    int r = settle(array);
    return error_end(r < 0 ? fail(r, "settling", array) : 0);
}

int gpupool_synced_query(const struct gpupool_synced *array, struct gpupool_synced_info *ret_info) {
    if (array == NULL || ret_info == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_synced_query: no array, or ret_info is NULL");
    const struct synced_memory *host = &array->sides[SYNCED_HOST], *on_device = &array->sides[SYNCED_DEVICE];
    *ret_info = (struct gpupool_synced_info){
        .size_bytes = array->size_bytes,
        .host_capacity_bytes = host->capacity_bytes,
        .device_capacity_bytes = on_device->capacity_bytes,
        .copies_to_device = array->copies_to[SYNCED_DEVICE],
        .copies_to_host = array->copies_to[SYNCED_HOST],
        .copies_between_devices = array->copies_between_devices,
        .zeroed = array->zeroed,
        .state = array->state,
        .host_owner = host->owner,
        .device_owner = on_device->owner,
        .device = (int)array->device,
    };
    return error_end(0);
}

static int find_device(struct gpupool_client *client, int *device, const struct gpu **ret_gpu) {
    unsigned current;
    uint32_t pool;

    int r = devices_need_gpu(&client->devices, ret_gpu);
    if (r < 0)
        return r;
    if (*device == -1) {
        int error = (*ret_gpu)->device_current(&current);
        if (error != 0)
            return devices_fail(*ret_gpu, error, "asking for the current device");
        *device = (int)current;
    }
    r = devices_need_device(&client->devices, *device, ret_gpu);
    return r < 0 ? r : gpupool_device_pool(client, *device, &pool);
}

int gpupool_synced_create(struct gpupool_client *client, int device, uint64_t size_bytes,
                          struct gpupool_synced **ret_array) {
    const struct gpu *gpu;

    int r = client_enter(client);
    if (r == 0 && (size_bytes == 0 || ret_array == NULL))
        r = error_set(GPUPOOL_E_INVALID, "0 bytes, or ret_array is NULL");
    if (r == 0)
        r = find_device(client, &device, &gpu);
    if (r < 0)
        return fail(r, "making", NULL);
    struct gpupool_synced *array = calloc(1, sizeof *array);
    if (array == NULL)
        return fail(no_memory(), "making", NULL);
    array->client = client;
    array->gpu = gpu;
    array->size_bytes = size_bytes;
    array->device = (unsigned)device;
    *ret_array = array;
    return error_end(0);
}

static int give_back(struct gpupool_synced *array, void *stream) {
    struct synced_stream by = synced_stream_of(array->device, stream);
    bool by_cpu = stream == GPUPOOL_NO_STREAM;

    int r = by_cpu ? settle(array) : 0;
    for (unsigned side = 0; r == 0 && side < 2; side++) {
        r = memory_drop(array->client, &array->sides[side], by_cpu ? NULL : &by);
        if (r == 0)
            array->state = synced_lose(array->state, side);
    }
    return r;
}

int gpupool_synced_destroy(struct gpupool_synced *array, void *stream) {
    if (array == NULL)
        return error_end(0);
    if (!fork_guard_is_child(&array->client->guard)) {
        int r = give_back(array, stream);
        if (r < 0)
            return fail(r, "ending", array);
    }
    memory_deinit(&array->sides[SYNCED_HOST]);
    memory_deinit(&array->sides[SYNCED_DEVICE]);
    free(array);
    return error_end(0);
}
