/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plug-in for PyTorch (torch.cuda.memory.CUDAPluggableAllocator) that does next to nothing, so that a
 * tensor costs little more than PyTorch's interface for plug-ins. Its blocks are not memory of a GPU, so no
 * kernel may use them. Each thread has a free list of its own, and frees only blocks that it allocated.
 */
#include <stddef.h>
#include <stdlib.h>
#include <sys/types.h>

#define EXPORT      __attribute__((visibility("default")))
#define BLOCKS      64u
#define BLOCK_BYTES 4096u

union block {
    union block *next;
    _Alignas(512) unsigned char memory[BLOCK_BYTES];
};

static _Thread_local struct {
    union block *free;
    union block blocks[BLOCKS];
    unsigned used;
} list;

EXPORT void *empty_plugin_malloc(ssize_t size_bytes, int device, void *stream);
EXPORT void empty_plugin_free(void *memory, ssize_t size_bytes, int device, void *stream);

void *empty_plugin_malloc(ssize_t size_bytes, int device, void *stream) {
    union block *block = list.free;

    (void)device;
    (void)stream;
    if (size_bytes <= 0)
        return NULL;
    if (block != NULL) {
        list.free = block->next;
        return block;
    }
    if (size_bytes > BLOCK_BYTES || list.used == BLOCKS)
        abort(); /* a program that this is not for */
    return &list.blocks[list.used++];
}

void empty_plugin_free(void *memory, ssize_t size_bytes, int device, void *stream) {
    union block *block = memory;

    (void)size_bytes;
    (void)device;
    (void)stream;
    block->next = list.free;
    list.free = block;
}
