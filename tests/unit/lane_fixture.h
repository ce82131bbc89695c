/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_LANE_FIXTURE_H
#define TESTS_UNIT_LANE_FIXTURE_H
/* What the tests of lanes share: lanes, and extents of memory that does not exist (lanes must not touch it).
 * Included after cmocka.h. */
#include <stdbool.h>
#include <stdint.h>

#include "client/cache/lane.h"
#include "heap_fixture.h"

#define POOL         7u
#define ADDRESS_STEP (1 * GIB) /* between the addresses of two extents */

static inline uint64_t generation_of(uint64_t lease) {
    return lease * 3 + 1;
}

/* Where a byte of a lease's extent is. */
static inline char *address_in(uint64_t lease, uint64_t bytes) {
    return (char *)(uintptr_t)(lease * ADDRESS_STEP + bytes);
}

/* From either heap. */
static inline int lane_take(struct lane *lane, uint64_t size_bytes, struct piece **ret_piece) {
    pthread_mutex_lock(&lane->lock);
    int r = lane_take_locked(lane, size_bytes, true, ret_piece);
    pthread_mutex_unlock(&lane->lock);
    return r;
}

static inline void lane_give(struct piece *piece) {
    struct lane *lane = piece->lane;
    pthread_mutex_lock(&lane->lock);
    lane_give_locked(lane, piece);
    pthread_mutex_unlock(&lane->lock);
}

static inline int lane_add_locked(struct lane *lane, enum lane_heap heap, const void *segment, uint64_t lease,
                                  uint64_t size_bytes) {
    return lane_add_extent_locked(lane, heap, segment, lease, generation_of(lease), address_in(lease, 0),
                                  size_bytes);
}

static inline int lane_add_extent(struct lane *lane, uint64_t lease, uint64_t size_bytes) {
    pthread_mutex_lock(&lane->lock);
    int r = lane_add_locked(lane, LANE_SMALL, NULL, lease, size_bytes);
    pthread_mutex_unlock(&lane->lock);
    return r;
}

static inline bool lane_reclaim(struct lane *lane, uint64_t minimum_bytes, struct lane_part *ret_part) {
    pthread_mutex_lock(&lane->lock);
    bool found = lane_reclaim_locked(lane, minimum_bytes, ret_part);
    pthread_mutex_unlock(&lane->lock);
    return found;
}

static inline struct lane *make_lane(void) {
    struct lane *lane = lane_new(NULL, POOL, 1, 0, NULL);
    assert_non_null(lane);
    return lane;
}

static inline unsigned lane_extents(const struct lane *lane) {
    unsigned count = 0;
    list_for_each(position, &lane->extents) count++;
    return count;
}

#endif
