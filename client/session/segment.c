/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/segment.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/lock.h"
#include "base/units.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/segment_kind.h"
#include "client/session/socket.h"

static struct list *bucket_of(struct segments *segments, uint64_t id) {
    return &segments->buckets[id % SEGMENT_BUCKETS];
}

void segments_init(struct segments *segments) {
    pthread_mutex_init(&segments->lock, NULL);
    pthread_mutex_init(&segments->mappings_lock, NULL);
    pthread_cond_init(&segments->opened, NULL);
    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_init(&segments->buckets[i]);
}

/* Whether the driver took it away. The lock of the mappings is held. */
static bool mapping_end(struct segment_mapping *mapping) {
    const struct segment *segment = mapping->segment;
    bool clean =
        segment->gpu->vmm_unmap((unsigned)segment->device, mapping->memory, segment->size_bytes) == 0;

    list_remove(&mapping->link);
    mapping->segment = NULL;
    return clean;
}

/* is_idle: the process has no work on the memory. Otherwise, and where closing does not wait for work, the
 * memory stays mapped for the rest of the process's life. */
static bool segment_end(struct segments *segments, struct segment *segment, bool is_idle,
                        bool (*end)(struct segment *segment)) {
    const struct segment_kind *kind = segment_kind(segment->kind);
    bool may = is_idle || kind->close_waits;
    bool clean = segment->memory == NULL || (may && end(segment));

    pthread_mutex_lock(&segments->mappings_lock);
    list_for_each_entry_safe(struct segment_mapping, mapping, &segment->mappings, link) {
        if (may) {
            clean = mapping_end(mapping) && clean;
            continue;
        }
        list_remove(&mapping->link);
        mapping->segment = NULL;
        clean = false;
    }
    pthread_mutex_unlock(&segments->mappings_lock);
    if (segment->has_vmm_handle)
        clean = kind->drop(segment) && clean;
    segment->memory = NULL;
    segment->fd = close_fd(segment->fd);
    return clean;
}

static bool segment_close(struct segments *segments, struct segment *segment, bool is_idle) {
    bool clean = segment_end(segments, segment, is_idle, segment_kind(segment->kind)->close);

    segment->state = SEGMENT_DESCRIBED;
    return clean;
}

/* From now on nothing is opened or mapped. */
static void begin_to_leave(struct segments *segments) {
    LOCKED(&segments->lock);
    pthread_mutex_lock(&segments->mappings_lock);
    segments->is_left = true;
    pthread_mutex_unlock(&segments->mappings_lock);
    pthread_cond_broadcast(&segments->opened);
}

static int fail_left(void) {
    return error_set(GPUPOOL_E_DISCONNECTED, "the process ends, and says farewell to the daemon");
}

/* Takes a segment that no thread opens, for good. NULL: there is none. *clean: false if a thread opens one.
 */
static struct segment *take_leaving(struct segments *segments, bool *clean) {
    LOCKED(&segments->lock);
    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_for_each_entry(struct segment, segment, &segments->buckets[i], link) {
            bool is_opening = segment->state == SEGMENT_OPENING;

            *clean = *clean && (!is_opening || segment->is_left);
            if (is_opening)
                continue;
            segment->state = SEGMENT_OPENING;
            segment->is_left = true;
            return segment;
        }
    return NULL;
}

static void tell_closed(const struct segments *segments, const struct segment *segment) {
    if (segments->listener.closed != NULL)
        segments->listener.closed(segments->listener.owner, segment);
}

bool segments_leave(struct segments *segments) {
    bool clean = !segments->unclean;

    begin_to_leave(segments);
    for (struct segment *segment; (segment = take_leaving(segments, &clean)) != NULL;) {
        const struct segment_kind *kind = segment_kind(segment->kind);

        clean =
            segment_end(segments, segment, true, kind->leave != NULL ? kind->leave : kind->close) && clean;
        tell_closed(segments, segment);
    }
    return clean;
}

bool segments_close(struct segments *segments, bool is_idle) {
    bool clean = !segments->unclean;

    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_for_each_entry(struct segment, segment, &segments->buckets[i], link) {
            clean = segment_close(segments, segment, is_idle) && clean;
        }
    return clean;
}

void segments_deinit(struct segments *segments) {
    segments_close(segments, true);
    segments_forget(segments);
    pthread_cond_destroy(&segments->opened);
    pthread_mutex_destroy(&segments->mappings_lock);
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

struct segment *segments_find(struct segments *segments, uint64_t id) {
    pthread_mutex_lock(&segments->lock);
    struct segment *segment = find(segments, id);
    pthread_mutex_unlock(&segments->lock);
    return segment;
}

int segments_remove(struct segments *segments, uint64_t id, uint32_t pool) {
    pthread_mutex_lock(&segments->lock);
    struct segment *segment = find(segments, id);
    if (segment == NULL || segment->pool != pool || segment->state == SEGMENT_OPENING) {
        pthread_mutex_unlock(&segments->lock);
        return -EBADMSG;
    }
    list_remove(&segment->link);
    segments->n_named -= segment->is_named;
    pthread_mutex_unlock(&segments->lock);

    bool clean = segment_close(segments, segment, true);
    tell_closed(segments, segment);
    free(segment);
    if (clean)
        return 0;
    pthread_mutex_lock(&segments->lock);
    segments->unclean = true;
    pthread_mutex_unlock(&segments->lock);
    return -EIO;
}

bool segments_name(struct segments *segments, uint64_t id) {
    pthread_mutex_lock(&segments->lock);
    struct segment *segment = find(segments, id);
    if (segment != NULL && !segment->is_named) {
        segment->is_named = true;
        segments->n_named++;
    }
    pthread_mutex_unlock(&segments->lock);
    return segment != NULL;
}

static struct segment *find_named(struct segments *segments) {
    for (unsigned i = 0; segments->n_named > 0 && i < SEGMENT_BUCKETS; i++)
        list_for_each_entry(struct segment, segment, &segments->buckets[i], link) {
            if (segment->is_named)
                return segment;
        }
    return NULL;
}

bool segments_take_named(struct segments *segments, uint64_t *ret_id, uint32_t *ret_pool) {
    pthread_mutex_lock(&segments->lock);
    struct segment *segment = find_named(segments);
    if (segment != NULL) {
        segment->is_named = false;
        segments->n_named--;
        *ret_id = segment->id;
        *ret_pool = segment->pool;
    }
    pthread_mutex_unlock(&segments->lock);
    return segment != NULL;
}

void segments_unmark(struct segments *segments) {
    pthread_mutex_lock(&segments->lock);
    for (unsigned i = 0; i < SEGMENT_BUCKETS; i++)
        list_for_each_entry(struct segment, segment, &segments->buckets[i], link) {
            segment->is_marked = false;
        }
    pthread_mutex_unlock(&segments->lock);
}

void segments_mark(struct segments *segments, uint64_t id) {
    pthread_mutex_lock(&segments->lock);
    struct segment *segment = find(segments, id);
    if (segment != NULL)
        segment->is_marked = true;
    pthread_mutex_unlock(&segments->lock);
}

static bool may_go(const struct segment *segment, bool is_any, bool is_done) {
    const struct segment_kind *kind = segment_kind(segment->kind);

    return !segment->is_marked && segment->state != SEGMENT_OPENING &&
           (kind->close_waits ? is_any || kind->pool_kind == PROTO_POOL_HOST : is_done);
}

bool segments_find_unmarked(struct segments *segments, bool is_any, bool is_done, uint64_t *ret_id,
                            uint32_t *ret_pool) {
    bool found = false;

    pthread_mutex_lock(&segments->lock);
    for (unsigned i = 0; i < SEGMENT_BUCKETS && !found; i++)
        list_for_each_entry(struct segment, segment, &segments->buckets[i], link) {
            if (!may_go(segment, is_any, is_done))
                continue;
            segment->is_marked = true;
            *ret_id = segment->id;
            *ret_pool = segment->pool;
            found = true;
            break;
        }
    pthread_mutex_unlock(&segments->lock);
    return found;
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

/* Enters the description of a segment that was described before: its descriptor is taken if that of the first
 * one did not arrive, and no other one has since. */
static const char *enter_again(struct segment *segment, const struct proto_segment *description, int *fd) {
    if (segment->kind != (enum proto_segment_kind)description->kind || segment->pool != description->pool ||
        segment->size_bytes != description->size_bytes)
        return "a segment is described in two ways";
    if (!segment->is_lost || *fd == FD_LOST)
        return NULL;
    const char *flaw = segment_kind(description->kind)->flaw(description, *fd);
    if (flaw != NULL)
        return flaw;
    segment->fd = take_fd(fd);
    segment->is_lost = false;
    return NULL;
}

/* Enters a description; the table is locked. Returns NULL or what is wrong with it. */
static const char *enter_description(struct segments *segments, const struct proto_lease *lease, int *fd,
                                     bool is_again, struct list *spares) {
    const struct proto_segment *description = &lease->description;
    bool is_lost = *fd == FD_LOST;

    if (description->id != lease->segment)
        return "a lease describes another segment than its own";
    if (description->pool != lease->pool)
        return "a lease describes a segment of another pool";
    struct segment *known = find(segments, description->id);
    if (known != NULL)
        return is_again ? enter_again(known, description, fd) : "a segment is described twice";
    const char *flaw = is_lost ? NULL : segment_kind(description->kind)->flaw(description, *fd);
    if (flaw != NULL)
        return flaw;
    struct segment *segment = list_first(spares, struct segment, link);
    assert(segment != NULL); /* a request has as many as its reply may describe */
    list_remove(&segment->link);
    *segment = (struct segment){
        .id = description->id,
        .size_bytes = description->size_bytes,
        .pool = description->pool,
        .kind = (enum proto_segment_kind)description->kind,
        .state = SEGMENT_DESCRIBED,
        .is_lost = is_lost,
        .fd = is_lost ? -1 : take_fd(fd),
        .device = -1,
    };
    _Static_assert(sizeof segment->handle.bytes == sizeof description->handle,
                   "one handle on wire and in driver");
    memcpy(segment->handle.bytes, description->handle, sizeof segment->handle.bytes);
    list_init(&segment->mappings);
    list_append(bucket_of(segments, segment->id), &segment->link);
    return NULL;
}

static const char *enter(struct segments *segments, const struct proto_lease *lease, int *fd, bool is_again,
                         struct list *spares, struct segment **ret_segment) {
    if (lease->description.kind != 0) {
        const char *flaw = enter_description(segments, lease, fd, is_again, spares);
        if (flaw != NULL)
            return flaw;
    }
    struct segment *segment = find(segments, lease->segment);
    if (segment == NULL)
        return "a lease is in a segment that was never described";
    if (segment->pool != lease->pool)
        return "a lease names another pool than its segment's";
    if (lease->parts != 0 && !segment_is_movable(segment))
        return "a lease lies in several segments that cannot be mapped side by side";
    if (lease->parts == 0 && !segment_covers(segment, lease->offset_bytes, lease->capacity_bytes))
        return "a lease reaches beyond its segment";
    *ret_segment = segment;
    return NULL;
}

const char *segments_enter(struct segments *segments, const struct proto_lease *lease, int *fd, bool is_again,
                           struct list *spares, struct segment **ret_segment) {
    pthread_mutex_lock(&segments->lock);
    const char *flaw = enter(segments, lease, fd, is_again, spares, ret_segment);
    pthread_mutex_unlock(&segments->lock);
    return flaw;
}

/* Has one thread at a time bring a segment into the process by a function of its kind. is_done: nothing is to
 * be done. */
static int bring(struct segments *segments, struct segment *segment, bool (*is_done)(const struct segment *),
                 int (*function)(struct segment *segment, struct devices *devices,
                                 const uint8_t uuid[PROTO_UUID_BYTES]),
                 struct devices *devices, const uint8_t uuid[PROTO_UUID_BYTES]) {
    pthread_mutex_lock(&segments->lock);
    while (segment->state == SEGMENT_OPENING && !segments->is_left)
        pthread_cond_wait(&segments->opened, &segments->lock);
    enum segment_state before = segment->state;
    bool is_left = segments->is_left, done = is_done(segment), lost = !done && segment->is_lost;
    if (!is_left && !done && !lost)
        segment->state = SEGMENT_OPENING;
    pthread_mutex_unlock(&segments->lock);
    if (is_left)
        return fail_left();
    if (done || lost)
        return lost ? SEGMENT_IS_LOST : 0;

    int r = function(segment, devices, uuid);
    if (r == 0)
        segment->fd = close_fd(segment->fd);

    pthread_mutex_lock(&segments->lock);
    segment->state = segment->memory != NULL ? SEGMENT_OPEN : before;
    pthread_cond_broadcast(&segments->opened);
    pthread_mutex_unlock(&segments->lock);
    if (r < 0)
        return error_prefix(r, "opening segment %" PRIu64 " (%s)", segment->id,
                            BYTES_TEXT(segment->size_bytes));
    return 0;
}

static bool is_open(const struct segment *segment) {
    return segment->state == SEGMENT_OPEN;
}

static bool is_imported(const struct segment *segment) {
    return segment->has_vmm_handle;
}

int segments_open(struct segments *segments, struct segment *segment, struct devices *devices,
                  const uint8_t uuid[PROTO_UUID_BYTES]) {
    return bring(segments, segment, is_open, segment_kind(segment->kind)->open, devices, uuid);
}

bool segment_is_movable(const struct segment *segment) {
    return segment_kind(segment->kind)->import != NULL;
}

int segments_import(struct segments *segments, struct segment *segment, struct devices *devices,
                    const uint8_t uuid[PROTO_UUID_BYTES]) {
    return bring(segments, segment, is_imported, segment_kind(segment->kind)->import, devices, uuid);
}

/* Maps the segments without access. Returns how many were, and the driver's error for the next. */
static unsigned map_all(const struct mapped_part *parts, unsigned count, struct segment_mapping *mappings,
                        char *memory, int *ret_error) {
    unsigned mapped = 0;

    *ret_error = 0;
    while (mapped < count && *ret_error == 0) {
        struct segment *segment = parts[mapped].segment;
        struct segment_mapping *mapping = &mappings[parts[mapped].number];
        *ret_error = segment->gpu->vmm_map((unsigned)segment->device, memory, segment->size_bytes,
                                           segment->vmm_handle);
        if (*ret_error != 0)
            break;
        mapping->segment = segment;
        mapping->memory = memory;
        list_append(&segment->mappings, &mapping->link);
        memory += segment->size_bytes;
        mapped++;
    }
    return mapped;
}

int segments_map(struct segments *segments, const struct mapped_part *parts, unsigned count,
                 struct segment_mapping *mappings, char *memory, enum gpu_access access) {
    const struct segment *first = parts[0].segment;
    uint64_t size_bytes = 0;
    const char *doing = "mapping it";
    int error;

    for (unsigned i = 0; i < count; i++)
        size_bytes += parts[i].segment->size_bytes;
    pthread_mutex_lock(&segments->mappings_lock);
    if (segments->is_left) {
        pthread_mutex_unlock(&segments->mappings_lock);
        return fail_left();
    }
    unsigned mapped = map_all(parts, count, mappings, memory, &error);
    if (error == 0) {
        doing = "giving devices access to it";
        error = segment_give_access(first, memory, size_bytes, access);
    }
    while (error != 0 && mapped > 0)
        (void)mapping_end(&mappings[parts[--mapped].number]);
    pthread_mutex_unlock(&segments->mappings_lock);
    return error == 0 ? 0 : devices_fail_on(first->gpu, (unsigned)first->device, error, doing);
}

int segments_unmap(struct segments *segments, struct segment_mapping *mapping, uint64_t id) {
    int r = 0;

    pthread_mutex_lock(&segments->mappings_lock);
    const struct segment *segment = mapping->segment;
    if (segment != NULL && (id == 0 || segment->id == id)) {
        int error = segment->gpu->vmm_unmap((unsigned)segment->device, mapping->memory, segment->size_bytes);
        if (error != 0) {
            r = devices_fail_on(segment->gpu, (unsigned)segment->device, error, "unmapping a segment");
        } else {
            list_remove(&mapping->link);
            mapping->segment = NULL;
        }
    }
    pthread_mutex_unlock(&segments->mappings_lock);
    return r;
}
