/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/own_row.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/row.h"
#include "client/session/row_parts.h"
#include "client/session/session.h"

/* The row of a lease; NULL: it has none of its own. The row stays, as its buffer is this thread's. */
static struct mapped_row *find_row(struct session *session, struct proto_lease_name lease) {
    struct rows *rows = &session->rows;

    if (atomic_load(&rows->n_own) == 0) /* most sessions have none, and ask this of each lease */
        return NULL;
    pthread_mutex_lock(&rows->lock);
    const struct row_use *use = rows_find_use_locked(rows, lease.lease, lease.generation);
    struct mapped_row *row = use != NULL && use->row->is_own ? use->row : NULL;
    pthread_mutex_unlock(&rows->lock);
    return row;
}

bool own_row_is(struct session *session, struct proto_lease_name lease) {
    return find_row(session, lease) != NULL;
}

uint64_t own_row_bytes(struct session *session, struct proto_lease_name lease) {
    return find_row(session, lease)->range->size_bytes;
}

bool own_row_is_mapped(struct session *session, struct proto_lease_name lease) {
    return !find_row(session, lease)->is_unmapped;
}

bool own_row_is_whole(struct session *session, struct proto_lease_name lease, uint64_t capacity_bytes) {
    const struct mapped_row *row = find_row(session, lease);
    return row->offset_bytes == 0 && row->range->size_bytes == capacity_bytes;
}

/* --- what is mapped --- */

/* The segments of a block or a row, as they are to be mapped. NULL: no memory. */
static struct mapped_part *parts_of_block(const struct own_block *block) {
    struct mapped_part *parts = malloc(block->count * sizeof *parts);

    for (uint32_t i = 0; parts != NULL && i < block->count; i++)
        parts[i] = (struct mapped_part){.segment = block->segments[i].segment, .number = i};
    return parts;
}

static struct mapped_part *parts_of_row(struct session *session, const struct mapped_row *row) {
    struct mapped_part *parts = malloc((row->n_parts + 1) * sizeof *parts); /* EMPTY: none, and no NULL */

    for (uint32_t i = 0; parts != NULL && i < row->n_parts; i++) {
        parts[i] =
            (struct mapped_part){.segment = segments_find(&session->segments, row->segments[i]), .number = i};
        assert(parts[i].segment != NULL); /* it is leased */
    }
    return parts;
}

static uint64_t bytes_of(const struct mapped_part *parts, uint32_t count) {
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++)
        bytes += parts[i].segment->size_bytes;
    return bytes;
}

static void set_unmapped(struct session *session, struct mapped_row *row, bool is_unmapped) {
    pthread_mutex_lock(&session->rows.lock);
    row->is_unmapped = is_unmapped;
    pthread_mutex_unlock(&session->rows.lock);
}

/* Maps the parts from..to again, which were taken away. */
static bool map_back(struct session *session, struct mapped_row *row, const struct mapped_part *parts,
                     uint32_t count) {
    char text[ERROR_TEXT_SIZE];

    if (count == 0)
        return true;
    error_save(text);
    int r = mapped_range_map(row->range, &session->segments, parts, count, 0, row->access);
    error_restore(text);
    return r == 0;
}

/* Takes away all that the driver takes away; the rest is mapped still. */
static void unmap_what_goes(struct session *session, struct mapped_row *row) {
    char text[ERROR_TEXT_SIZE];

    error_save(text);
    for (uint32_t i = 0; i < row->n_parts; i++)
        (void)mapped_range_unmap(row->range, &session->segments, i, 0);
    error_restore(text);
}

/* Takes the mappings of a row away. Where the driver fails to, those that were taken are mapped again. Where it fails
 * to do that, too, the others are taken as far as it goes. */
static int unmap(struct session *session, struct mapped_row *row, const struct mapped_part *parts) {
    uint32_t gone = 0;
    int r = 0;

    while (gone < row->n_parts && r == 0) {
        r = mapped_range_unmap(row->range, &session->segments, gone, 0);
        gone += r == 0;
    }
    if (r == 0) {
        set_unmapped(session, row, true);
        return 0;
    }
    if (map_back(session, row, parts, gone))
        return r;
    unmap_what_goes(session, row);
    set_unmapped(session, row, true);
    return r;
}

/* Whether a part of a row is mapped still, because the driver did not unmap it. */
static bool is_mapped(struct session *session, struct mapped_row *row, uint32_t part) {
    return mapped_range_has(row->range, &session->segments, part);
}

/* Maps those parts of a row that are not mapped, run by run. */
static int map(struct session *session, struct mapped_row *row, const struct mapped_part *parts) {
    uint64_t offset_bytes = 0;
    int r = 0;

    for (uint32_t from = 0, to; from < row->n_parts && r == 0; from = to) {
        bool is = is_mapped(session, row, from);
        for (to = from + 1; to < row->n_parts && is_mapped(session, row, to) == is;)
            to++;
        if (!is)
            r = mapped_range_map(row->range, &session->segments, parts + from, to - from, offset_bytes,
                                 row->access);
        offset_bytes += bytes_of(parts + from, to - from);
    }
    return r;
}

/* --- rows --- */

int own_row_make(struct session *session, const struct own_block *block, char **ret_memory) {
    _cleanup_(freep) struct mapped_part *parts = parts_of_block(block);
    struct row_use *use = malloc(sizeof *use);
    struct mapped_row *row = NULL;
    int r = parts == NULL || use == NULL ? error_no_memory() : 0;

    rows_end_own(session); /* those whose fences were not ready when they were released */
    if (r == 0)
        r = row_make(session, parts, block->count, GPU_ACCESS_READ_WRITE, &row);
    if (r < 0) {
        free(use);
        return r;
    }
    assert(row != NULL);
    row->is_own = true;
    *ret_memory = row->range->memory;
    rows_add(&session->rows, row, block->lease.lease, block->lease.generation, use);
    return 0;
}

int own_row_unmap(struct session *session, struct proto_lease_name lease, bool *ret_is_unmapped) {
    struct mapped_row *row = find_row(session, lease);

    *ret_is_unmapped = true;
    if (row->is_unmapped)
        return 0;
    _cleanup_(freep) struct mapped_part *parts = parts_of_row(session, row);
    int r = parts == NULL ? error_no_memory() : unmap(session, row, parts);
    *ret_is_unmapped = row->is_unmapped;
    return r;
}

int own_row_map(struct session *session, struct proto_lease_name lease) {
    struct mapped_row *row = find_row(session, lease);

    _cleanup_(freep) struct mapped_part *parts = parts_of_row(session, row);
    if (parts == NULL)
        return error_no_memory();
    int r = map(session, row, parts);
    if (r == 0) {
        set_unmapped(session, row, false);
        return 0;
    }
    unmap_what_goes(session, row);
    return r;
}

uint64_t *own_row_empty(struct session *session, struct proto_lease_name lease, uint32_t *ret_count) {
    struct mapped_row *row = find_row(session, lease);

    pthread_mutex_lock(&session->rows.lock);
    uint64_t *ids = take_ptr(&row->segments);
    *ret_count = row->n_parts;
    row->n_parts = 0;
    pthread_mutex_unlock(&session->rows.lock);
    return ids;
}

/* --- another block --- */

/* The bookkeeping of a row's mappings, and the ids of its segments. */
struct content {
    struct mapped_range *range;
    uint64_t *segments;
};

static void content_free(struct content *content) {
    mapped_range_forget(content->range);
    free(content->segments);
}

/* Prepares the content of so many parts for a row, without mapping it. */
static int content_make(const struct mapped_row *row, const struct mapped_part *parts, uint32_t count,
                        struct content *ret_content) {
    *ret_content = (struct content){.range = mapped_range_again(row->range, count),
                                    .segments = row_list_segments(parts, count)};
    return ret_content->range == NULL || ret_content->segments == NULL ? error_no_memory() : 0;
}

/* Has a row, and its use, go by the block that is mapped at its addresses now. *content gets what it had. */
static void take_content(struct session *session, struct mapped_row *row, struct content *content, uint32_t count,
                         struct proto_lease_name from, struct proto_lease_name to) {
    const struct content before = {row->range, row->segments};
    struct rows *rows = &session->rows;

    pthread_mutex_lock(&rows->lock);
    row->range = content->range;
    row->segments = content->segments;
    row->n_parts = count;
    row->is_unmapped = false;
    row_name_use_locked(rows, rows_find_use_locked(rows, from.lease, from.generation), to.lease,
                        to.generation);
    pthread_mutex_unlock(&rows->lock);
    *content = before;
}

int own_row_fill(struct session *session, struct proto_lease_name lease, const struct own_block *block) {
    struct mapped_row *row = find_row(session, lease);
    _cleanup_(freep) struct mapped_part *parts = parts_of_block(block);
    _cleanup_(content_free) struct content content = {0};

    if (parts == NULL)
        return error_no_memory();
    assert(row->n_parts == 0 && bytes_of(parts, block->count) == row->range->size_bytes);
    int r = content_make(row, parts, block->count, &content);
    if (r == 0)
        r = mapped_range_map(content.range, &session->segments, parts, block->count, 0, row->access);
    if (r == 0)
        take_content(session, row, &content, block->count, lease, block->lease);
    return r;
}

/* Lists and imports the parts of a lease. *ret_parts is the caller's. */
static int bring_parts(struct session *session, const struct proto_lease *lease,
                       const struct segment *segment, const uint8_t uuid[PROTO_UUID_BYTES],
                       struct mapped_part **ret_parts) {
    uint32_t count = row_parts_count(lease->parts);
    _cleanup_(freep) struct proto_part *listed = calloc(count, sizeof *listed);
    _cleanup_(freep) struct mapped_part *parts = calloc(count, sizeof *parts);

    if (listed == NULL || parts == NULL)
        return error_no_memory();
    int r = row_parts_list(session, lease, segment, listed);
    if (r == 0)
        r = row_parts_import(session, lease, listed, count, uuid, parts);
    if (r == 0)
        *ret_parts = take_ptr(&parts);
    return r;
}

static int check_place(const struct mapped_row *row, const struct proto_lease *lease,
                       const struct mapped_part *parts) {
    uint64_t bytes = bytes_of(parts, row_parts_count(lease->parts));

    if (bytes != row->range->size_bytes)
        return error_set(GPUPOOL_E_INVALID,
                         "the other block lies in segments of %s, and its place is one of %s",
                         BYTES_TEXT(bytes), BYTES_TEXT(row->range->size_bytes));
    if (lease->offset_bytes != row->offset_bytes)
        return error_set(GPUPOOL_E_INVALID,
                         "the other block begins %" PRIu64 " bytes into its segment, and its place %" PRIu64,
                         lease->offset_bytes, row->offset_bytes);
    return 0;
}

void own_change_free(struct own_change *change) {
    mapped_range_forget(change->range);
    free(change->segments);
    free(change->parts);
    *change = (struct own_change){0};
}

int own_row_prepare(struct session *session, struct proto_lease_name lease, const struct proto_lease *other,
                    const struct segment *segment, const uint8_t uuid[PROTO_UUID_BYTES],
                    struct own_change *ret_change) {
    struct own_change change = {.row = find_row(session, lease),
                                .lease = {.lease = other->lease, .generation = other->generation},
                                .count = row_parts_count(other->parts)};
    struct content content = {0};

    int r = bring_parts(session, other, segment, uuid, &change.parts);
    if (r == 0)
        r = check_place(change.row, other, change.parts);
    if (r == 0)
        r = content_make(change.row, change.parts, change.count, &content);
    change.range = content.range;
    change.segments = content.segments;
    if (r == 0)
        *ret_change = change;
    else
        own_change_free(&change);
    return r;
}

/* Takes away what the driver had not unmapped of a row that is UNMAPPED. */
static int unmap_rest(struct session *session, struct mapped_row *row) {
    int r = 0;

    for (uint32_t i = 0; i < row->n_parts && r == 0; i++)
        r = mapped_range_unmap(row->range, &session->segments, i, 0);
    return r;
}

/* Takes the mappings of the row's block away, and makes those of the other one. */
static int exchange(struct session *session, struct mapped_row *row, const struct mapped_part *parts,
                    const struct own_change *change) {
    bool was_unmapped = row->is_unmapped;
    int r = was_unmapped ? unmap_rest(session, row) : unmap(session, row, parts);

    if (r == 0 && !change->is_unmapped) {
        r = mapped_range_map(change->range, &session->segments, change->parts, change->count, 0, row->access);
        if (r < 0 && !was_unmapped && map_back(session, row, parts, row->n_parts))
            set_unmapped(session, row, false);
    }
    return r < 0 && !was_unmapped && row->is_unmapped
               ? error_prefix(r, "the old block is not mapped any more, either")
               : r;
}

int own_row_change(struct session *session, struct own_change *change) {
    struct mapped_row *row = change->row;
    struct rows *rows = &session->rows;
    const bool was_unmapped = row->is_unmapped;

    _cleanup_(freep) struct mapped_part *parts = parts_of_row(session, row);
    if (parts == NULL)
        return error_no_memory();
    int r = exchange(session, row, parts, change);
    if (r < 0)
        return r;
    pthread_mutex_lock(&rows->lock);
    struct row_use *use = list_first(&row->uses, struct row_use, link);
    const struct own_change before = {.row = row,
                                      .lease = {.lease = use->lease, .generation = use->generation},
                                      .range = row->range,
                                      .segments = row->segments,
                                      .parts = take_ptr(&parts),
                                      .count = row->n_parts,
                                      .is_unmapped = was_unmapped};
    row->range = change->range;
    row->segments = change->segments;
    row->n_parts = change->count;
    row->is_unmapped = change->is_unmapped;
    row_name_use_locked(rows, use, change->lease.lease, change->lease.generation);
    pthread_mutex_unlock(&rows->lock);
    free(change->parts);
    *change = before;
    return 0;
}
