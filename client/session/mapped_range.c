/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/mapped_range.h"

#include <stdlib.h>

struct mapped_range *mapped_range_new(const struct gpu *gpu, unsigned device, uint64_t size_bytes,
                                      uint32_t n_mappings, int *ret_error) {
    struct mapped_range *range = calloc(1, sizeof *range + n_mappings * sizeof *range->mappings);
    void *memory;

    *ret_error = 0;
    if (range == NULL)
        return NULL;
    *ret_error = gpu->address_reserve(device, size_bytes, &memory);
    if (*ret_error != 0) {
        free(range);
        return NULL;
    }
    range->gpu = gpu;
    range->device = device;
    range->memory = memory;
    range->size_bytes = size_bytes;
    return range;
}

struct mapped_range *mapped_range_again(const struct mapped_range *range, uint32_t n_mappings) {
    struct mapped_range *again = calloc(1, sizeof *again + n_mappings * sizeof *again->mappings);

    if (again != NULL)
        *again = *range; /* without the mappings */
    return again;
}

void mapped_range_forget(struct mapped_range *range) {
    free(range);
}

void mapped_range_free(struct mapped_range *range) {
    if (range != NULL)
        (void)range->gpu->address_free(range->device, range->memory, range->size_bytes);
    mapped_range_forget(range);
}

int mapped_range_map(struct mapped_range *range, struct segments *segments, const struct mapped_part *parts,
                     uint32_t count, uint64_t offset_bytes, enum gpu_access access) {
    return segments_map(segments, parts, count, range->mappings, range->memory + offset_bytes, access);
}

int mapped_range_unmap(struct mapped_range *range, struct segments *segments, uint32_t number,
                       uint64_t segment) {
    return segments_unmap(segments, &range->mappings[number], segment);
}

bool mapped_range_has(struct mapped_range *range, struct segments *segments, uint32_t number) {
    pthread_mutex_lock(&segments->mappings_lock);
    bool has = range->mappings[number].segment != NULL;
    pthread_mutex_unlock(&segments->mappings_lock);
    return has;
}
