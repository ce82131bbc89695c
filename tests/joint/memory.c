/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that the library allocates: an allocation fails now and then, in worlds that say so. It is noted
 * by client, so that what a client that has closed did not free is found at the end.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/core/cache_line.h"
#include "client/core/piece.h"
#include "tests/joint/world.h"
#include "tests/joint/wrapped.h"

#define BLOCKS_MAX (1u << 16) /* a power of two; four times as many as there are at a time */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *pointer, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *pointer);

/* A chunk of pieces is never freed, but used again: client/core/piece.c. */
static bool is_chunk(size_t size) {
    const size_t pieces = PIECES_IN_CHUNK * sizeof(struct piece);
    return size >= pieces && size <= pieces + CACHE_LINE_BYTES;
}

/* An open hash table, by address. */
static struct block {
    void *pointer; /* NULL: never used */
    unsigned client;
    bool is_free;
} blocks[BLOCKS_MAX];
static unsigned n_blocks; /* used ever, at their places */

static struct block *find(const void *pointer) {
    unsigned at = (unsigned)(((uintptr_t)pointer / 16 * UINT64_C(0x9e3779b97f4a7c15)) >> 48);

    while (blocks[at].pointer != NULL && blocks[at].pointer != pointer)
        at = (at + 1) % BLOCKS_MAX;
    return &blocks[at];
}

static void *note(void *pointer) {
    if (pointer == NULL || !baton_is_on() || baton_client() >= JOINT_CLIENTS)
        return pointer;
    struct block *block = find(pointer);
    if (block->pointer == NULL)
        must(++n_blocks < BLOCKS_MAX / 4 * 3, "the simulator has no room for an allocation");
    *block = (struct block){.pointer = pointer, .client = baton_client()};
    return pointer;
}

static void forget(void *pointer) {
    if (pointer != NULL && n_blocks > 0)
        find(pointer)->is_free = true;
}

unsigned memory_left(unsigned client) {
    unsigned count = 0;

    for (unsigned i = 0; i < BLOCKS_MAX; i++)
        count += blocks[i].pointer != NULL && !blocks[i].is_free && blocks[i].client == client;
    return count;
}

bool memory_fails(void) {
    if (!baton_is_on() || baton_client() >= JOINT_CLIENTS || world.is_calm || !one_in(world.memory_fails))
        return false;
    world.tally->failed_allocations++;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t size) {
    return memory_fails() ? NULL : note(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size) {
    return memory_fails() ? NULL : note(__real_calloc(count, size));
}

void *__wrap_realloc(void *pointer, size_t size) {
    if (memory_fails())
        return NULL;
    forget(pointer);
    return note(__real_realloc(pointer, size));
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return memory_fails()   ? NULL
           : is_chunk(size) ? __real_aligned_alloc(alignment, size)
                            : note(__real_aligned_alloc(alignment, size));
}

void __wrap_free(void *pointer) {
    forget(pointer);
    __real_free(pointer);
}
