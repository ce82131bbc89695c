/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accesses to synchronised arrays: <gpupool/synced.h>. synced_step() says what an access takes; this file
 * does it, in this order. A step that failed has changed nothing that counts:
 *
 * 1. a stream that is captured is refused, if anything at all would be enqueued on it;
 * 2. the side gets its memory (synced_memory.h);
 * 3. its contents are copied or zeroed, behind the uses that this has to come behind, and noted as a use
 * (synced_usage.h);
 * 4. the stream, or the CPU, is brought behind the uses that the access itself has to come behind;
 * 5. the access is noted, and the state is the new one.
 *
 * An access that needs none of this is answered before, from what lies in the array: no lock, no driver call.
 * It does not end with error_end() either: the address of a thread-local variable would cost a quarter of its
 * time.
 */
#include <string.h>

#include "client/objects/synced_array.h"
#include "client/objects/synced_order.h"
#include "client/session/error.h"

static bool is_access(enum gpupool_access access) {
    return access == GPUPOOL_READ || access == GPUPOOL_WRITE || access == GPUPOOL_OVERWRITE;
}

static int check(enum gpupool_access access, void *const *ret_memory) {
    return is_access(access) && ret_memory != NULL
               ? 0
               : error_set(GPUPOOL_E_INVALID, "access %u, or ret_memory is NULL", (unsigned)access);
}

/* --- making contents --- */

static int copy(struct gpupool_synced *array, enum synced_side side, const struct synced_stream *by) {
    struct synced_memory *to = &array->sides[side], *from = &array->sides[!side];
    struct fence fence;

    if (usage_reserve(&from->usage) < 0)
        return array_no_memory();
    int r = synced_order(array->client, &from->usage, by, false);
    if (r == 0)
        r = synced_order(array->client, &to->usage, by, true);
    if (r < 0)
        return r;
    r = gpupool_copy(array->client, (int)by->device, to->data, from->data, array->size_bytes, by->handle);
    if (r < 0)
        return error_prefix(r, side == SYNCED_DEVICE ? "copying to the device" : "copying to the host");
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
    r = gpupool_set(array->client, (int)by->device, memory->data, 0, array->size_bytes, by->handle);
    if (r < 0)
        return error_prefix(r, "zeroing");
    usage_note_write(&memory->usage, by, synced_leave_fence(array->client, by, &fence) ? &fence : NULL);
    return 0;
}

/* Whether a step enqueues anything on its stream, but for what memory that is too small leaves there. */
static bool must_enqueue(struct gpupool_synced *array, enum synced_side side, const struct synced_step *step,
                         const struct synced_stream *by) {
    if (array->size_bytes == 0)
        return false;
    if (step->fill == SYNCED_COPY)
        return true;
    return side == SYNCED_DEVICE &&
           (step->fill == SYNCED_ZERO ||
            synced_must_order(array->client, &array->sides[side].usage, by, step->writes));
}

/* The step of an access. */
static struct synced_step step_of(const struct gpupool_synced *array, enum synced_side side,
                                  unsigned access) {
    struct synced_step step = synced_step(array->state, side, access);

    if (array->size_bytes == 0) {
        step.fill = SYNCED_KEEP;
        step.needs_memory = false;
    }
    return step;
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
    struct synced_step step = step_of(array, SYNCED_HOST, access);

    int r = prepare(array, SYNCED_HOST, &step, by);
    if (r == 0)
        r = synced_wait(array->client, &array->sides[SYNCED_HOST].usage, step.writes);
    if (r == 0)
        commit(array, SYNCED_HOST, &step);
    return r;
}

static int access_device(struct gpupool_synced *array, enum gpupool_access access,
                         const struct synced_stream *by) {
    struct synced_step step = step_of(array, SYNCED_DEVICE, access);
    struct synced_usage *usage = &array->sides[SYNCED_DEVICE].usage;

    if (array->size_bytes == 0) {
        commit(array, SYNCED_DEVICE, &step);
        return 0;
    }
    if (usage_reserve(usage) < 0)
        return array_no_memory();
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

/* An array of 0 bytes is left to the slower way: it may give NULL, which is to leave no old error. */
static bool may_be_at_once(const struct gpupool_synced *array, enum synced_side side,
                           enum gpupool_access access) {
    if (access == GPUPOOL_OVERWRITE ? array->size_bytes - 1 >= array->sides[side].capacity_bytes
                                    : !synced_is_good(array->state, side) || array->size_bytes == 0)
        return false;
    return is_access(access) && !fork_guard_is_child(&array->client->session.guard);
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
    if (array != NULL && ret_memory != NULL && (stream != GPUPOOL_NO_STREAM || array->gpu == NULL) &&
        host_at_once(array, access)) {
        *ret_memory = array->sides[SYNCED_HOST].data;
        return 0;
    }
    int r = check(access, ret_memory);
    if (r == 0)
        r = array_enter_on(array, stream);
    if (r == 0) {
        struct synced_stream by = synced_stream_of(array->device, stream);
        r = access_host(array, access, &by);
    }
    if (r < 0)
        return array_fail(r, "host access to", array);
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
    int r = check(access, ret_memory);
    if (r == 0)
        r = array_enter_device(array, stream);
    if (r == 0) {
        by = synced_stream_of(array->device, stream);
        r = access_device(array, access, &by);
    }
    if (r < 0)
        return array_fail(r, "device access to", array);
    *ret_memory = array->sides[SYNCED_DEVICE].data;
    return error_end(0);
}

static int fetch(struct gpupool_synced *array, enum synced_side side, void *stream) {
    int r = array_enter_on(array, stream);
    if (r < 0)
        return r;
    struct synced_step step = step_of(array, side, SYNCED_FETCH);
    if (step.after == array->state)
        return 0;
    if (side == SYNCED_DEVICE)
        r = array_enter_device(array, stream);
    if (r < 0)
        return r;
    struct synced_stream by = synced_stream_of(array->device, stream);
    r = prepare(array, side, &step, &by);
    if (r == 0)
        commit(array, side, &step);
    return r;
}

int gpupool_synced_push(struct gpupool_synced *array, void *stream) {
    int r = fetch(array, SYNCED_DEVICE, stream);
    return error_end(r < 0 ? array_fail(r, "pushing", array) : 0);
}

int gpupool_synced_pull(struct gpupool_synced *array, void *stream) {
    int r = fetch(array, SYNCED_HOST, stream);
    return error_end(r < 0 ? array_fail(r, "pulling", array) : 0);
}
