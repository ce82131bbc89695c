/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_MAPPED_RANGE_H
#define CLIENT_SESSION_MAPPED_RANGE_H
/*
 * A mapped range: addresses of this process that were reserved at once, and the segments that are mapped
 * there side by side. An arena and a row have one each. Their owners decide what is mapped where, and how
 * long a mapping stays that nothing uses.
 *
 * Each mapping has a number, which the owner chooses: of an arena the slot's in which the segment begins, of
 * a row the part's. A mapping goes when its owner says so, or when the daemon has its segment closed
 * (segments_remove()).
 *
 * Thread-safe: the lock of the mappings (struct segments) guards what is mapped, and is held over the
 * driver's calls. The owner sees to it that no two threads map at the same addresses.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/session/segment.h"

struct mapped_range {
    const struct gpu *gpu; /* borrowed, for good */
    unsigned device;
    char *memory;
    uint64_t size_bytes;
    struct segment_mapping mappings[]; /* by number */
};

/* Reserves addresses for so many mappings. Returns NULL, and in *ret_error the driver's error, or 0 where
 * there was no memory for the bookkeeping. */
struct mapped_range *mapped_range_new(const struct gpu *gpu, unsigned device, uint64_t size_bytes,
                                      uint32_t n_mappings, int *ret_error);

/* Makes the bookkeeping of so many mappings at the addresses of a range, where other segments are to be mapped. The
 * owner keeps one of the two, and has mapped_range_forget() for the other. NULL: no memory. */
struct mapped_range *mapped_range_again(const struct mapped_range *range, uint32_t n_mappings);

/* Frees the bookkeeping and the addresses. Nothing is mapped there. Accepts NULL. The driver's failure only
 * keeps addresses from being used again. */
void mapped_range_free(struct mapped_range *range);

/* As mapped_range_free(), in a forked child or when something may be mapped there: leaves the addresses. */
void mapped_range_forget(struct mapped_range *range);

/* Maps imported segments of the range's device side by side from an offset on, where nothing is mapped: all,
 * or none. Waits for no kernel. 0, DRIVER or DISCONNECTED. */
int mapped_range_map(struct mapped_range *range, struct segments *segments, const struct mapped_part *parts,
                     uint32_t count, uint64_t offset_bytes, enum gpu_access access);

/* Takes the mapping of a number away, if it is of the segment with that id; 0: of any. Nothing that the GPU does
 * may use it any more. Waits for no kernel. 0, or DRIVER: it is as it was. */
int mapped_range_unmap(struct mapped_range *range, struct segments *segments, uint32_t number,
                       uint64_t segment);

/* Whether the mapping of a number is there. */
bool mapped_range_has(struct mapped_range *range, struct segments *segments, uint32_t number);

#endif
