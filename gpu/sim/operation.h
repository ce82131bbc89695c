/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_SIM_OPERATION_H
#define GPU_SIM_OPERATION_H
/*
 * One operation of a simulated stream, from its making to its end. The stream that it is given to owns it. It
 * holds a reference to each range that it touches.
 */
#include <stdint.h>

#include "base/list.h"
#include "gpu/sim/internal.h"

enum operation_kind {
    OPERATION_WRITE64,
    OPERATION_WAIT64,
    OPERATION_SET,
    OPERATION_COPY,
};

struct operation {
    enum operation_kind kind;
    void *to; /* the word, for writes and waits */
    const void *from;
    unsigned physical;                       /* the stream's device */
    struct sim_range *to_range, *from_range; /* references; NULL for unregistered host memory; of a row of
                                                mapped handles the first one's */
    uint64_t value;                          /* the byte, for sets */
    uint64_t size_bytes;
    struct list link;         /* the stream's */
    struct sim_order *behind; /* the stream's: other streams' work that comes first */
};

/* Make an operation, which is the caller's. They check the addresses: 0, INVALID_VALUE, MEMORY_ALLOCATION. */
int operation_make_word(enum operation_kind kind, unsigned physical, uint64_t *word, uint64_t value,
                        struct operation **ret_operation);
int operation_make_set(unsigned physical, void *memory, uint8_t byte, uint64_t size_bytes,
                       struct operation **ret_operation);
int operation_make_copy(unsigned physical, void *to, const void *from, uint64_t size_bytes,
                        struct operation **ret_operation);

/* Does it. A wait for a word takes as long as that takes. Where mapped handles were taken away before, the
 * device fails for this process instead. */
void operation_do(const struct operation *operation);

void operation_free(struct operation *operation);

#endif
