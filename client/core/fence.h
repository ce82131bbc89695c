/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_FENCE_H
#define CLIENT_CORE_FENCE_H
/*
 * A fence, and the words by which it becomes ready. A fence is a promise that a stream makes: "when this word
 * has reached this value, all that was enqueued on me before is done". The GPU writes the words; the core
 * only reads them. client/session/fence.h leaves fences.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/page.h"

struct fence {
    uint32_t word;  /* its number in the array, plus 1; 0: none, the work before it is done */
    uint64_t value; /* that the word has to reach */
};
#define FENCE_NONE ((struct fence){0, 0})

/* The words of a client's fences. NULL before the client has left one; then it stays until the client closes.
 */
struct fence_array {
    _Atomic uint64_t *words;
};

/* Whether the work before a fence is done. A load. Thread-safe. */
static inline bool fence_array_has(const struct fence_array *array, struct fence fence) {
    return fence.word == 0 ||
           proto_fence_is_ready(atomic_load_explicit(&array->words[fence.word - 1], memory_order_acquire),
                                fence.value);
}

#endif
