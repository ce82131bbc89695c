/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/row.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/row_parts.h"
#include "client/session/session.h"

static void init_lists(struct list *lists) {
    for (unsigned i = 0; i < ROW_BUCKETS; i++)
        list_init(&lists[i]);
}

void rows_init(struct rows *rows) {
    pthread_mutex_init(&rows->making, NULL);
    pthread_mutex_init(&rows->lock, NULL);
    init_lists(rows->rows);
    init_lists(rows->leases);
    list_init(&rows->idle);
    list_init(&rows->stuck);
}

static void use_free(struct row_use *use) {
    list_remove(&use->link);
    list_remove(&use->lease_link);
    free(use);
}

static void uses_free(struct list *uses) {
    list_for_each_entry_safe(struct row_use, use, uses, link) {
        use_free(use);
    }
}

static void row_free(struct mapped_row *row) {
    uses_free(&row->uses);
    uses_free(&row->waiting);
    list_remove(&row->link);
    mapped_range_forget(row->range);
    free(row->segments);
    free(row);
}

static void free_all(struct list *rows) {
    list_for_each_entry_safe(struct mapped_row, row, rows, link) {
        list_remove(&row->idle_link);
        row_free(row);
    }
}

void rows_forget(struct rows *rows) {
    for (unsigned i = 0; i < ROW_BUCKETS; i++)
        free_all(&rows->rows[i]);
    free_all(&rows->stuck);
}

void rows_deinit(struct rows *rows) {
    rows_forget(rows);
    pthread_mutex_destroy(&rows->making);
    pthread_mutex_destroy(&rows->lock);
}

/* --- the table; rows->lock is held --- */

static struct list *bucket_of(struct rows *rows, uint64_t first_segment, uint32_t n_parts) {
    return &rows->rows[(first_segment * 31 + n_parts) % ROW_BUCKETS];
}

static bool has_segments(const struct mapped_row *row, const struct proto_part *parts, uint32_t count) {
    if (row->n_parts != count)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (row->segments[i] != parts[i].segment)
            return false;
    return true;
}

static struct mapped_row *find(struct rows *rows, const struct proto_part *parts, uint32_t count,
                               enum gpu_access access) {
    list_for_each_entry(struct mapped_row, row, bucket_of(rows, parts[0].segment, count), link) {
        if (!row->is_own && row->access == access && has_segments(row, parts, count))
            return row;
    }
    return NULL;
}

struct row_use *rows_find_use_locked(struct rows *rows, uint64_t lease, uint64_t generation) {
    list_for_each_entry(struct row_use, use, &rows->leases[lease % ROW_BUCKETS], lease_link) {
        if (use->lease == lease && use->generation == generation)
            return use;
    }
    return NULL;
}

static void leave_idle(struct rows *rows, struct mapped_row *row) {
    list_remove(&row->idle_link);
    rows->n_idle--;
}

static void enter_idle(struct rows *rows, struct mapped_row *row) {
    list_append(&rows->idle, &row->idle_link);
    rows->n_idle++;
}

void row_name_use_locked(struct rows *rows, struct row_use *use, uint64_t lease, uint64_t generation) {
    use->lease = lease;
    use->generation = generation;
    list_remove(&use->lease_link);
    list_append(&rows->leases[lease % ROW_BUCKETS], &use->lease_link);
}

static void add_use(struct rows *rows, struct mapped_row *row, uint64_t lease, uint64_t generation,
                    struct row_use *use) {
    *use = (struct row_use){.row = row};
    list_init(&use->link);
    list_init(&use->lease_link);
    list_append(&row->uses, &use->link);
    row_name_use_locked(rows, use, lease, generation);
    if (row->n_leases++ == 0)
        leave_idle(rows, row);
}

/* Forgets the leases whose fence is ready. Returns whether any are left, released or not. */
static bool is_in_use(const struct session *session, struct mapped_row *row) {
    list_for_each_entry_safe(struct row_use, use, &row->waiting, link) {
        if (fence_is_ready(session, use->fence))
            use_free(use);
    }
    return row->n_leases > 0 || !list_is_empty(&row->waiting);
}

/* Takes a row out of the table: it is not found any more. */
static void take_out(struct rows *rows, struct mapped_row *row) {
    if (row->n_leases == 0)
        leave_idle(rows, row);
    if (row->is_own)
        atomic_fetch_sub(&rows->n_own, 1);
    list_remove(&row->link);
    uses_free(&row->uses);
    uses_free(&row->waiting);
    row->n_leases = 0;
}

/* --- rows that end; rows->making is held --- */

/* Unmaps a row that was taken out, and frees its addresses. They stay if the driver fails to unmap a part. */
static void row_end(struct session *session, struct mapped_row *row) {
    bool is_unmapped = true;

    for (uint32_t i = 0; i < row->n_parts; i++)
        is_unmapped = mapped_range_unmap(row->range, &session->segments, i, 0) == 0 && is_unmapped;
    if (!is_unmapped) {
        list_append(&session->rows.stuck, &row->link);
        return;
    }
    mapped_range_free(take_ptr(&row->range));
    row_free(row);
}

/* The row that was idle for longest, if there are more than `most` and the GPU is through with it; taken out.
 * An own row is not kept, however few there are. NULL: none. */
static struct mapped_row *take_idle(struct session *session, unsigned most) {
    struct rows *rows = &session->rows;
    struct mapped_row *found = NULL;

    pthread_mutex_lock(&rows->lock);
    list_for_each_entry(struct mapped_row, row, &rows->idle, idle_link) {
        if ((row->is_own || rows->n_idle > most) && !is_in_use(session, row)) {
            found = row;
            break;
        }
    }
    if (found != NULL)
        take_out(rows, found);
    pthread_mutex_unlock(&rows->lock);
    return found;
}

static void end_idle(struct session *session, unsigned most) {
    char text[ERROR_TEXT_SIZE];
    struct mapped_row *row;

    error_save(text);
    while ((row = take_idle(session, most)) != NULL)
        row_end(session, row);
    error_restore(text);
}

void rows_end_own(struct session *session) {
    if (atomic_load(&session->rows.n_own) == 0)
        return;
    pthread_mutex_lock(&session->rows.making);
    end_idle(session, UINT_MAX);
    pthread_mutex_unlock(&session->rows.making);
}

static bool has_segment(const struct mapped_row *row, uint64_t id) {
    for (uint32_t i = 0; i < row->n_parts; i++)
        if (row->segments[i] == id)
            return true;
    return false;
}

/* Takes out the rows that a segment is a part of; id 0: all, with those that could not be unmapped before. */
static void take_out_all(struct rows *rows, uint64_t id, struct list *ret_taken) {
    list_init(ret_taken);
    pthread_mutex_lock(&rows->lock);
    for (unsigned i = 0; i < ROW_BUCKETS; i++)
        list_for_each_entry_safe(struct mapped_row, row, &rows->rows[i], link) {
            if (id != 0 && (row->is_unmapped || !has_segment(row, id)))
                continue;
            take_out(rows, row);
            list_append(ret_taken, &row->link);
        }
    pthread_mutex_unlock(&rows->lock);
    if (id == 0)
        list_for_each_entry_safe(struct mapped_row, row, &rows->stuck, link) {
            list_remove(&row->link);
            list_append(ret_taken, &row->link);
        }
}

static void end_all(struct session *session, uint64_t id) {
    char text[ERROR_TEXT_SIZE];
    struct list taken;

    error_save(text);
    take_out_all(&session->rows, id, &taken);
    list_for_each_entry_safe(struct mapped_row, row, &taken, link) {
        list_remove(&row->link);
        row_end(session, row);
    }
    error_restore(text);
}

void rows_close(struct session *session) {
    pthread_mutex_lock(&session->rows.making);
    end_all(session, 0);
    pthread_mutex_unlock(&session->rows.making);
}

int rows_remove_segment(struct session *session, uint64_t id, uint32_t pool) {
    pthread_mutex_lock(&session->rows.making);
    end_all(session, id);
    int r = segments_remove(&session->segments, id, pool);
    pthread_mutex_unlock(&session->rows.making);
    return r;
}

/* --- rows that are made --- */

/* Reserves the addresses of a row and maps its segments there. */
static int map_row(struct session *session, const struct mapped_part *parts, struct mapped_row *row) {
    const struct gpu *gpu = parts[0].segment->gpu;
    unsigned device = (unsigned)parts[0].segment->device;
    uint64_t size_bytes = 0;
    int error;

    for (uint32_t i = 0; i < row->n_parts; i++)
        size_bytes += parts[i].segment->size_bytes;
    row->range = mapped_range_new(gpu, device, size_bytes, row->n_parts, &error);
    if (row->range == NULL)
        return error == 0 ? error_no_memory()
                          : devices_fail_on(gpu, device, error, "reserving addresses for its segments");
    int r = mapped_range_map(row->range, &session->segments, parts, row->n_parts, 0, row->access);
    if (r < 0)
        mapped_range_free(take_ptr(&row->range));
    return r;
}

uint64_t *row_list_segments(const struct mapped_part *parts, uint32_t count) {
    uint64_t *ids = malloc(count * sizeof *ids);

    for (uint32_t i = 0; ids != NULL && i < count; i++)
        ids[i] = parts[i].segment->id;
    return ids;
}

static struct mapped_row *row_new(const struct mapped_part *parts, uint32_t count, enum gpu_access access) {
    struct mapped_row *row = calloc(1, sizeof *row);

    if (row == NULL)
        return NULL;
    list_init(&row->link);
    list_init(&row->idle_link);
    list_init(&row->uses);
    list_init(&row->waiting);
    row->n_parts = count;
    row->access = access;
    row->segments = row_list_segments(parts, count);
    if (row->segments != NULL)
        return row;
    row_free(row);
    return NULL;
}

int row_make(struct session *session, const struct mapped_part *parts, uint32_t count, enum gpu_access access,
             struct mapped_row **ret_row) {
    struct mapped_row *row = row_new(parts, count, access);

    if (row == NULL)
        return error_no_memory();
    int r = map_row(session, parts, row);
    if (r < 0) {
        row_free(row);
        return r;
    }
    *ret_row = row;
    return 0;
}

void rows_add(struct rows *rows, struct mapped_row *row, uint64_t lease, uint64_t generation,
              struct row_use *use) {
    pthread_mutex_lock(&rows->lock);
    list_append(bucket_of(rows, row->segments[0], row->n_parts), &row->link);
    enter_idle(rows, row);
    if (row->is_own)
        atomic_fetch_add(&rows->n_own, 1);
    add_use(rows, row, lease, generation, use);
    pthread_mutex_unlock(&rows->lock);
}

/* The row of a lease, which is used or made. */
struct plan {
    const struct proto_lease *lease;
    const struct proto_part *parts;
    uint32_t n_parts;
    struct lease_access access;
    const uint8_t *uuid; /* of the device */
};

/* Imports the segments of the plan, and makes a row of them. rows->making is held. */
static int make(struct session *session, const struct plan *plan, struct mapped_row **ret_row) {
    _cleanup_(freep) struct mapped_part *mapped = calloc(plan->n_parts, sizeof *mapped);

    if (mapped == NULL)
        return error_no_memory();
    end_idle(session, ROWS_IDLE_MAX - 1);
    int r = row_parts_import(session, plan->lease, plan->parts, plan->n_parts, plan->uuid, mapped);
    return r < 0 ? r : row_make(session, mapped, plan->n_parts, plan->access.access, ret_row);
}

/* Adds a use to the row of the plan, if there is one: it is taken. Returns the row's memory or NULL. */
static char *use_row(struct rows *rows, const struct plan *plan, struct row_use *use) {
    char *memory = NULL;

    if (plan->access.is_own)
        return NULL;
    pthread_mutex_lock(&rows->lock);
    struct mapped_row *row = find(rows, plan->parts, plan->n_parts, plan->access.access);
    if (row != NULL) {
        add_use(rows, row, plan->lease->lease, plan->lease->generation, use);
        memory = row->range->memory;
    }
    pthread_mutex_unlock(&rows->lock);
    return memory;
}

/* Makes the row of the plan, and adds a use to it, which is taken on success. rows->making is held. */
static int make_and_use(struct session *session, const struct plan *plan, struct row_use *use,
                        char **ret_memory) {
    struct mapped_row *row = NULL;
    int r = make(session, plan, &row);

    if (r < 0)
        return r;
    assert(row != NULL);
    row->is_own = plan->access.is_own;
    row->offset_bytes = plan->lease->offset_bytes;
    *ret_memory = row->range->memory;
    rows_add(&session->rows, row, plan->lease->lease, plan->lease->generation, use);
    return 0;
}

/* Uses the row of the plan, which is made if there is none. */
static int use_or_make(struct session *session, const struct plan *plan, char **ret_memory) {
    struct row_use *use = malloc(sizeof *use);
    struct rows *rows = &session->rows;
    int r = 0;

    if (use == NULL)
        return error_no_memory();
    *ret_memory = use_row(rows, plan, use);
    if (*ret_memory != NULL)
        return 0;
    pthread_mutex_lock(&rows->making);
    *ret_memory = use_row(rows, plan, use); /* another thread may have made it meanwhile */
    if (*ret_memory == NULL)
        r = make_and_use(session, plan, use, ret_memory);
    pthread_mutex_unlock(&rows->making);
    if (r < 0)
        free(use);
    return r;
}

int rows_open(struct session *session, const struct proto_lease *lease, const struct segment *segment,
              const uint8_t uuid[PROTO_UUID_BYTES], struct lease_access access, char **ret_memory) {
    struct plan plan = {
        .lease = lease, .n_parts = row_parts_count(lease->parts), .uuid = uuid, .access = access};
    _cleanup_(freep) struct proto_part *parts = calloc(plan.n_parts, sizeof *parts);
    char *memory = NULL;

    if (parts == NULL)
        return error_no_memory();
    int r = row_parts_list(session, lease, segment, parts);
    if (r < 0)
        return r;
    plan.parts = parts;
    r = use_or_make(session, &plan, &memory);
    if (r < 0 && lease->parts > 0)
        return error_prefix(r, "mapping %u segments side by side", lease->parts);
    if (r < 0)
        return error_prefix(r, "mapping segment %" PRIu64 " at further addresses", segment->id);
    *ret_memory = memory + lease->offset_bytes;
    return 0;
}

/* --- leases --- */

void rows_release(struct session *session, uint64_t lease, uint64_t generation, struct fence fence) {
    struct rows *rows = &session->rows;
    bool is_own = false;

    pthread_mutex_lock(&rows->lock);
    struct row_use *use = rows_find_use_locked(rows, lease, generation);
    if (use != NULL) {
        struct mapped_row *row = use->row;
        list_remove(&use->lease_link);
        list_remove(&use->link);
        list_append(&row->waiting, &use->link);
        use->fence = fence;
        is_own = row->is_own;
        if (--row->n_leases == 0)
            enter_idle(rows, row);
        (void)is_in_use(session, row);
    }
    pthread_mutex_unlock(&rows->lock);
    if (is_own)
        rows_end_own(session);
}

void rows_mark(struct session *session) {
    struct rows *rows = &session->rows;

    pthread_mutex_lock(&rows->lock);
    for (unsigned i = 0; i < ROW_BUCKETS; i++)
        list_for_each_entry(struct mapped_row, row, &rows->rows[i], link) {
            if (!is_in_use(session, row))
                continue;
            for (uint32_t part = 0; part < row->n_parts; part++)
                segments_mark(&session->segments, row->segments[part]);
        }
    pthread_mutex_unlock(&rows->lock);
}

void *rows_locate(struct rows *rows, uint64_t lease, uint64_t generation, const struct proto_info *info) {
    void *memory = NULL;

    pthread_mutex_lock(&rows->lock);
    const struct row_use *use = rows_find_use_locked(rows, lease, generation);
    const struct mapped_row *row = use == NULL ? NULL : use->row;
    if (row != NULL && !row->is_unmapped && row->n_parts == row_parts_count(info->parts) &&
        row->segments[0] == info->segment && info->capacity_bytes <= row->range->size_bytes &&
        info->offset_bytes <= row->range->size_bytes - info->capacity_bytes)
        memory = row->range->memory + info->offset_bytes;
    pthread_mutex_unlock(&rows->lock);
    return memory;
}
