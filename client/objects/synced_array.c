/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of <gpupool/synced.h> that make, change, describe and end a synchronised array.
 */
#include "client/objects/synced_array.h"

#include <stdlib.h>

#include "base/units.h"
#include "client/api/buffer.h"
#include "client/objects/synced_order.h"
#include "client/session/error.h"

/* --- what every call begins and ends with --- */

static int array_enter(const struct gpupool_synced *array) {
    return array == NULL ? error_set(GPUPOOL_E_INVALID, "no array") : client_enter(array->client);
}

static int refuse_no_stream(const void *stream) {
    return stream != GPUPOOL_NO_STREAM
               ? 0
               : error_set(GPUPOOL_E_INVALID,
                           "GPUPOOL_NO_STREAM orders nothing: a stream of the device is needed");
}

int array_enter_on(const struct gpupool_synced *array, const void *stream) {
    int r = array_enter(array);
    return r < 0 || array->gpu == NULL ? r : refuse_no_stream(stream);
}

/* Finds a device that the daemon has memory of. -1: the calling thread's current one. */
static int find_device(struct gpupool_client *client, int device, const struct gpu **ret_gpu,
                       unsigned *ret_device) {
    const struct gpu *gpu;
    uint32_t pool;

    int r = devices_resolve(&client->session.devices, &device);
    if (r == 0)
        r = devices_need_device(&client->session.devices, device, &gpu);
    if (r == 0)
        r = gpupool_device_pool(client, device, &pool);
    if (r < 0)
        return r;
    *ret_gpu = gpu;
    *ret_device = (unsigned)device;
    return 0;
}

int array_enter_device(struct gpupool_synced *array, const void *stream) {
    int r = array_enter(array);
    if (r == 0)
        r = refuse_no_stream(stream);
    if (r == 0 && array->gpu == NULL)
        r = find_device(array->client, -1, &array->gpu, &array->device);
    return r;
}

int array_fail(int error, const char *doing, const struct gpupool_synced *array) {
    if (array == NULL)
        return error_prefix(error, "%s a synchronised array", doing);
    if (array->gpu == NULL)
        return error_prefix(error, "%s a synchronised array of %s without a device", doing,
                            BYTES_TEXT(array->size_bytes));
    return error_prefix(error, "%s a synchronised array of %s on device %u", doing,
                        BYTES_TEXT(array->size_bytes), array->device);
}

int array_no_memory(void) {
    return error_set(GPUPOOL_E_NO_MEMORY, "no memory for bookkeeping");
}

/* --- size, place, memory of the user's --- */

int gpupool_synced_resize(struct gpupool_synced *array, uint64_t size_bytes) {
    if (array == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_synced_resize: no array");
    if (size_bytes > array->size_bytes)
        array->state = GPUPOOL_SYNCED_UNINITIALIZED;
    array->size_bytes = size_bytes;
    return 0;
}

static int adopt(struct gpupool_synced *array, enum synced_side side, void *data, void *stream) {
    int r = side == SYNCED_DEVICE ? array_enter_device(array, stream) : array_enter_on(array, stream);
    if (r == 0 && data == NULL && array->size_bytes > 0)
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
    /* The stream's earlier work wrote device memory. Of memory that was the array's before, the stream is
     * behind all earlier uses now. */
    if (side == SYNCED_DEVICE || is_known)
        usage_note_write(&memory->usage, &by, NULL);
    array->state = synced_newer(side);
    return 0;
}

int gpupool_synced_adopt_host(struct gpupool_synced *array, void *memory, void *stream) {
    int r = adopt(array, SYNCED_HOST, memory, stream);
    return error_end(r < 0 ? array_fail(r, "adopting host memory for", array) : 0);
}

int gpupool_synced_adopt_device(struct gpupool_synced *array, void *memory, void *stream) {
    int r = adopt(array, SYNCED_DEVICE, memory, stream);
    return error_end(r < 0 ? array_fail(r, "adopting device memory for", array) : 0);
}

/* Gives memory back that does not become the array's, whatever else fails: if need be, when the copy is over
 * that may be under way there. */
static void discard(struct gpupool_synced *array, struct synced_memory *memory,
                    const struct synced_stream *by) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    if (memory_drop(array->client, memory, by) < 0) {
        /* A device that cannot be waited for does no work any more. */
        (void)client_synchronize(array->client, (int)by->device, by->handle);
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
        r = usage_reserve(&from->usage) < 0 ? array_no_memory() : 0;
    if (r == 0)
        r = memory_need(client, &to, SYNCED_DEVICE, array->size_bytes, by);
    if (r < 0)
        return r;
    r = synced_order(client, &from->usage, by, false);
    if (r == 0) {
        r = gpupool_copy(client, (int)by->device, to.data, from->data, array->size_bytes, by->handle);
        if (r < 0)
            r = error_prefix(r, "copying from device to device");
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
    const struct gpu *gpu = NULL; /* gcc 12 does not see that a failure returned before they are used */
    unsigned found = SYNCED_NO_DEVICE;

    int r = array_enter(array);
    if (r == 0)
        r = refuse_no_stream(stream);
    if (r == 0)
        r = find_device(array->client, device, &gpu, &found);
    if (r < 0 || found == array->device)
        return r;
    struct synced_stream by = synced_stream_of(found, stream);
    if (array->state == GPUPOOL_SYNCED_DEVICE_NEWER && array->size_bytes > 0)
        r = move_contents(array, &by);
    else
        r = memory_drop(array->client, &array->sides[SYNCED_DEVICE], &by);
    if (r < 0)
        return r;
    if (array->state == GPUPOOL_SYNCED_IN_STEP)
        array->state = GPUPOOL_SYNCED_HOST_NEWER;
    array->gpu = gpu;
    array->device = found;
    return 0;
}

int gpupool_synced_move(struct gpupool_synced *array, int device, void *stream) {
    int r = move(array, device, stream);
    return error_end(r < 0 ? array_fail(r, "moving", array) : 0);
}

/* --- ends and questions --- */

static int settle(struct gpupool_synced *array) {
    int r = array_enter(array);
    for (unsigned side = 0; r == 0 && side < 2; side++)
        r = synced_wait(array->client, &array->sides[side].usage, true);
    return r;
}

int gpupool_synced_settle(struct gpupool_synced *array) {
    int r = settle(array);
    return error_end(r < 0 ? array_fail(r, "settling", array) : 0);
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
        .device = array->gpu != NULL ? (int)array->device : -1,
    };
    return error_end(0);
}

static int create(struct gpupool_client *client, int device, uint64_t size_bytes,
                  struct gpupool_synced **ret_array) {
    const struct gpu *gpu = NULL;
    unsigned found = SYNCED_NO_DEVICE;

    int r = client_enter(client);
    if (r == 0 && ret_array == NULL)
        r = error_set(GPUPOOL_E_INVALID, "ret_array is NULL");
    if (r == 0 && device < GPUPOOL_DEVICE_OF_FIRST_ACCESS)
        r = error_set(GPUPOOL_E_INVALID, "device %d", device);
    if (r == 0 && device != GPUPOOL_DEVICE_OF_FIRST_ACCESS)
        r = devices_gpu(&client->session.devices, &gpu);
    if (r == 0 && gpu != NULL)
        r = find_device(client, device, &gpu, &found);
    if (r < 0)
        return r;
    struct gpupool_synced *array = calloc(1, sizeof *array);
    if (array == NULL)
        return array_no_memory();
    array->client = client;
    array->gpu = gpu;
    array->size_bytes = size_bytes;
    array->device = found;
    *ret_array = array;
    return 0;
}

int gpupool_synced_create(struct gpupool_client *client, int device, uint64_t size_bytes,
                          struct gpupool_synced **ret_array) {
    int r = create(client, device, size_bytes, ret_array);
    return error_end(r < 0 ? array_fail(r, "making", NULL) : 0);
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
    if (!fork_guard_is_child(&array->client->session.guard)) {
        int r = give_back(array, stream);
        if (r < 0)
            return array_fail(r, "ending", array);
    }
    memory_deinit(&array->sides[SYNCED_HOST]);
    memory_deinit(&array->sides[SYNCED_DEVICE]);
    free(array);
    return error_end(0);
}
