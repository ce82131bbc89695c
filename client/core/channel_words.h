/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_CHANNEL_WORDS_H
#define CLIENT_CORE_CHANNEL_WORDS_H
/*
 * Accesses to the words of a channel's pages. proto/channel.h names the order of each access. Sources of the
 * core touch the pages by these functions alone: a test that defines GPUPOOL_CHANNEL_HOOKS gets each access
 * as a call of its own, and so can run another process, or end this one, between any two.
 */
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "proto/channel.h"

enum word_order {
    WORD_PLAIN,   /* orders nothing */
    WORD_ORDERED, /* a store follows all accesses before it; a load comes before all accesses after it */
    WORD_TOTAL,   /* besides, all total accesses have one order */
};

#ifdef GPUPOOL_CHANNEL_HOOKS

uint64_t channel_hook_load(const _Atomic uint64_t *word, enum word_order order);
void channel_hook_store(_Atomic uint64_t *word, uint64_t value, enum word_order order);

static inline uint64_t word_load(const _Atomic uint64_t *word, enum word_order order) {
    return channel_hook_load(word, order);
}

static inline void word_store(_Atomic uint64_t *word, uint64_t value, enum word_order order) {
    channel_hook_store(word, value, order);
}

#else

static inline uint64_t word_load(const _Atomic uint64_t *word, enum word_order order) {
    return order == WORD_TOTAL     ? atomic_load_explicit(word, memory_order_seq_cst)
           : order == WORD_ORDERED ? atomic_load_explicit(word, memory_order_acquire)
                                   : atomic_load_explicit(word, memory_order_relaxed);
}

static inline void word_store(_Atomic uint64_t *word, uint64_t value, enum word_order order) {
    if (order == WORD_TOTAL)
        atomic_store_explicit(word, value, memory_order_seq_cst);
    else if (order == WORD_ORDERED)
        atomic_store_explicit(word, value, memory_order_release);
    else
        atomic_store_explicit(word, value, memory_order_relaxed);
}

#endif

/* Copies bytes into a page. The target is the start of a line, and has room for whole words. Plain. */
static inline void words_write(void *page, const void *bytes, uint64_t size_bytes) {
#ifdef GPUPOOL_CHANNEL_HOOKS
    _Atomic uint64_t *words = page;
    for (uint64_t done = 0; done < size_bytes; done += sizeof *words) {
        uint64_t value = 0;
        memcpy(&value, (const char *)bytes + done,
               size_bytes - done < sizeof value ? size_bytes - done : sizeof value);
        word_store(words++, value, WORD_PLAIN);
    }
#else
    if (size_bytes > 0)
        memcpy(page, bytes, size_bytes);
#endif
}

#endif
