/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_ROW_H
#define DAEMON_CORE_ROW_H
/*
 * A row: a block that lies in several segments of one pool. Its parts follow each other in the order in which
 * they were merged, and each is one range of a segment of its own. A client maps the segments side by side in
 * that order, whole. So the first part alone may begin after the start of its segment, and the last alone may
 * end before the end of its segment; the parts are one stretch of addresses then.
 *
 * Only segments of device memory that are handed over as descriptors can be mapped at chosen addresses: rows
 * are in pools of such segments (pool_has_rows()).
 *
 * A row is held as a whole: nothing of it comes back alone, so that capacity_bytes, held_bytes and the sum of
 * the parts are equal. It has two parts at least.
 */
#include <stdbool.h>

#include "daemon/core/types.h"

/* Whether the memory of one block can continue another one's, which is a row then or is one already. Both are
 * their leases' alone. */
bool row_can_continue(const struct block *block, const struct block *from);

/* The parts of a block, as LEASE and INFO tell them: 0 of one that is no row. */
static inline uint32_t row_parts(const struct block *block) {
    return block->is_row ? block->n_ranges : 0;
}

/* Part i of a row, of n_ranges. Linear in i. */
const struct heap_range *row_part(const struct block *row, unsigned i);

/* Whether the parts follow each other as they have to. */
bool row_is_valid(const struct block *row);

#endif
