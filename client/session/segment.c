/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/segment.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/mapping.h"
#include "base/units.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/memfd.h"

static struct list *bucket_of(struct segments *segments, uint64_t id) {
    return &segments->buckets[id % SEGMENT_BUCKETS];
}

void segments_init(struct segments *segments) {
    pthread_mutex_init(&segments->lock, NULL);
    pthread_cond_init(&segments->opened, NULL);
    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_init(&segments->buckets[i]);
}

/* Unregisters host memory and unmaps it. Where the driver refuses, it stays mapped for the rest of the
 * process's life: the driver may still have the GPU write there, and an address that is taken cannot be given
 * to other memory. Returns false then. */
static bool segment_unmap_host(struct segment *segment) {
    bool clean = !segment->is_registered || segment->gpu->host_unregister(segment->memory) == 0;

    if (clean)
        clean = munmap(segment->memory, segment->size_bytes) == 0;
    segment->is_registered = false;
    segment->memory = NULL;
    segment->gpu = NULL;
    return clean;
}

static bool segment_close(struct segment *segment) {
    bool clean = true;

    if (segment->memory != NULL && segment->kind == PROTO_SEGMENT_MEMFD) {
        clean = segment_unmap_host(segment);
    } else if (segment->memory != NULL) {
        clean = segment->gpu->ipc_close((unsigned)segment->device, segment->memory) == 0;
    }
    segment->memory = NULL;
    segment->state = SEGMENT_DESCRIBED;
    segment->fd = close_fd(segment->fd);
    return clean;
}

bool segments_close(struct segments *segments) {
    bool clean = !segments->unclean;

    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_for_each_entry(struct segment, segment, &segments->buckets[i], link) {
            clean = segment_close(segment) && clean;
        }
    return clean;
}

void segments_deinit(struct segments *segments) {
    segments_close(segments);
    segments_forget(segments);
    pthread_cond_destroy(&segments->opened);
    pthread_mutex_destroy(&segments->lock);
}

void segments_forget(struct segments *segments) {
    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_for_each_entry_safe(struct segment, segment, &segments->buckets[i], link) {
            list_remove(&segment->link);
            free(segment);
        }
}

static struct segment *find(struct segments *segments, uint64_t id) {
    list_for_each_entry(struct segment, segment, bucket_of(segments, id), link) {
        if (segment->id == id)
            return segment;
    }
    return NULL;
}

int segments_remove(struct segments *segments, uint64_t id, uint32_t pool) {
    pthread_mutex_lock(&segments->lock);
    struct segment *segment = find(segments, id);
    if (segment == NULL || segment->pool != pool || segment->state == SEGMENT_OPENING) {
        pthread_mutex_unlock(&segments->lock);
        return -EBADMSG;
    }
    list_remove(&segment->link);
    pthread_mutex_unlock(&segments->lock);

    bool clean = segment_close(segment);
    free(segment);
    if (clean)
        return 0;
    pthread_mutex_lock(&segments->lock);
    segments->unclean = true;
    pthread_mutex_unlock(&segments->lock);
    return -EIO;
}

uint64_t segments_pools(struct segments *segments) {
    uint64_t pools = 0;

    pthread_mutex_lock(&segments->lock);
    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_for_each_entry(const struct segment, segment, &segments->buckets[i], link) {
            pools |= UINT64_C(1) << ((segment->pool - 1) % PROTO_POOLS_MAX);
        }
    pthread_mutex_unlock(&segments->lock);
    return pools;
}

static bool segment_covers(const struct segment *segment, uint64_t offset_bytes, uint64_t capacity_bytes) {
    return capacity_bytes <= segment->size_bytes && offset_bytes <= segment->size_bytes - capacity_bytes;
}

void *segments_locate(struct segments *segments, uint64_t id, uint32_t pool, uint64_t offset_bytes,
                      uint64_t capacity_bytes) {
    void *memory = NULL;

    pthread_mutex_lock(&segments->lock);
    const struct segment *segment = find(segments, id);
    if (segment != NULL && segment->state == SEGMENT_OPEN && segment->pool == pool &&
        segment_covers(segment, offset_bytes, capacity_bytes))
        memory = (char *)segment->memory + offset_bytes;
    pthread_mutex_unlock(&segments->lock);
    return memory;
}

/* Enters a description; the table is locked. Returns NULL or what is wrong with it. */
static const char *enter_description(struct segments *segments, const struct proto_lease *lease, int *fd,
                                     struct segment **spare) {
    const struct proto_segment *description = &lease->description;

    if (description->id != lease->segment)
        return "a lease describes another segment than its own";
    if (description->pool != lease->pool)
        return "a lease describes a segment of another pool";
    if (find(segments, description->id) != NULL)
        return "a segment is described twice";
    if (description->kind == PROTO_SEGMENT_MEMFD) {
        const char *flaw = memfd_flaw(*fd, description->size_bytes);
        if (flaw != NULL)
            return flaw;
    }
    struct segment *segment = take_ptr(spare);
    *segment = (struct segment){
        .id = description->id,
        .size_bytes = description->size_bytes,
        .pool = description->pool,
        .kind = (enum proto_segment_kind)description->kind,
        .state = SEGMENT_DESCRIBED,
        .fd = take_fd(fd),
        .device = -1,
    };
    _Static_assert(sizeof segment->handle.bytes == sizeof description->handle,
                   "one handle on wire and in driver");
    memcpy(segment->handle.bytes, description->handle, sizeof segment->handle.bytes);
    list_append(bucket_of(segments, segment->id), &segment->link);
    return NULL;
}

static const char *enter(struct segments *segments, const struct proto_lease *lease, int *fd,
                         struct segment **spare, struct segment **ret_segment) {
    if (lease->description.kind != 0) {
        const char *flaw = enter_description(segments, lease, fd, spare);
        if (flaw != NULL)
            return flaw;
    }
    struct segment *segment = find(segments, lease->segment);
    if (segment == NULL)
        return "a lease is in a segment that was never described";
    if (segment->pool != lease->pool)
        return "a lease names another pool than its segment's";
    if (!segment_covers(segment, lease->offset_bytes, lease->capacity_bytes))
        return "a lease reaches beyond its segment";
    *ret_segment = segment;
    return NULL;
}

const char *segments_enter(struct segments *segments, const struct proto_lease *lease, int *fd,
                           struct segment **spare, struct segment **ret_segment) {
    pthread_mutex_lock(&segments->lock);
    const char *flaw = enter(segments, lease, fd, spare, ret_segment);
    pthread_mutex_unlock(&segments->lock);
    return flaw;
}

static int fail_system(const char *what) {
    return error_set(GPUPOOL_E_DRIVER, "%s: %s (%s)", what, strerrorname_np(errno), strerrordesc_np(errno));
}

static int segment_open_host(struct segment *segment, struct devices *devices) {
    const struct gpu *gpu;
    int r = devices_gpu(devices, &gpu);
    if (r < 0)
        return r;

    void *memory;
    r = mapping_make(segment->fd, segment->size_bytes, SEGMENT_MAP_ALIGN_BYTES, &memory);
    if (r < 0) {
        errno = -r;
        return fail_system("mapping it");
    }
    /* A forked child must not share memory that the daemon thinks its parent alone has. */
    if (madvise(memory, segment->size_bytes, MADV_DONTFORK) < 0) {
        r = fail_system("keeping it out of forked children");
        munmap(memory, segment->size_bytes);
        return r;
    }
    (void)madvise(memory, segment->size_bytes,
                  MADV_HUGEPAGE); /* a hint: hugetlb memory refuses it, and has no need */

    segment->memory = memory;
    segment->gpu = gpu;
    if (gpu != NULL) {
        unsigned current;
        int error = gpu->host_register(memory, segment->size_bytes);
        if (error != 0) {
            segment_unmap_host(segment);
            return devices_fail(gpu, error, "registering it with the driver");
        }
        segment->is_registered = true;
        /* Any device may use the memory; the one that surely has a context now is the current one. */
        if (gpu->device_current(&current) == 0)
            devices_note_use(devices, current);
    }
    segment->fd = close_fd(segment->fd);
    return 0;
}

static int segment_open_device(struct segment *segment, struct devices *devices,
                               const uint8_t uuid[PROTO_UUID_BYTES]) {
    const struct gpu *gpu;
    struct gpu_uuid name;
    char text[GPU_UUID_TEXT_SIZE];
    void *memory;

    int r = devices_need_gpu(devices, &gpu);
    if (r < 0)
        return r;
    memcpy(name.bytes, uuid, sizeof name.bytes);
    gpu_uuid_format(&name, text);
    int device = devices_find(devices, uuid);
    if (device < 0)
        return error_set(GPUPOOL_E_NO_POOL,
                         "device %s is not visible in this process (CUDA_VISIBLE_DEVICES?)", text);
    int error = gpu->ipc_open((unsigned)device, &segment->handle, &memory);
    if (error != 0) {
        devices_fail(gpu, error, "opening its handle");
        return error_prefix(GPUPOOL_E_DRIVER, "device %d (%s)", device, text);
    }
    devices_note_use(devices, (unsigned)device);
    segment->memory = memory;
    segment->gpu = gpu;
    segment->device = device;
    return 0;
}

int segments_open(struct segments *segments, struct segment *segment, struct devices *devices,
                  const uint8_t uuid[PROTO_UUID_BYTES]) {
    pthread_mutex_lock(&segments->lock);
    while (segment->state == SEGMENT_OPENING)
        pthread_cond_wait(&segments->opened, &segments->lock);
    if (segment->state == SEGMENT_OPEN) {
        pthread_mutex_unlock(&segments->lock);
        return 0;
    }
    segment->state = SEGMENT_OPENING;
    pthread_mutex_unlock(&segments->lock);

    int r = segment->kind == PROTO_SEGMENT_MEMFD ? segment_open_host(segment, devices)
                                                 : segment_open_device(segment, devices, uuid);

    pthread_mutex_lock(&segments->lock);
    segment->state = r == 0 ? SEGMENT_OPEN : SEGMENT_DESCRIBED;
    pthread_cond_broadcast(&segments->opened);
    pthread_mutex_unlock(&segments->lock);
    if (r < 0)
        return error_prefix(r, "opening segment %" PRIu64 " (%s)", segment->id,
                            BYTES_TEXT(segment->size_bytes));
    return 0;
}
