/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cache/bin.h"

#include <limits.h>
#include <stdlib.h>

static struct piece *magazine_take(struct magazine *magazine, uint64_t size_bytes) {
    if (magazine == NULL)
        return NULL;
    for (uint32_t i = magazine->count; i-- > 0;) {
        struct piece *piece = magazine->pieces[i];
        if (!size_class_suits(piece->capacity_bytes, size_bytes))
            continue;
        magazine->pieces[i] = magazine->pieces[--magazine->count];
        return piece;
    }
    return NULL;
}

/* Has a magazine with pieces in the place of one without. False: both here have some, though too small ones.
 */
static bool bin_load(struct bin *bin, struct stream_heap *stream_heap, unsigned size_class) {
    if (!magazine_is_empty(bin->loaded))
        bin_load_spare(bin, bin->loaded, bin->spare);
    if (!magazine_is_empty(bin->loaded))
        return false;
    struct magazine *full = depot_take(stream_heap->depot, size_class, bin->loaded);
    if (full == NULL)
        return false;
    bin->loaded = full;
    for (uint32_t i = 0; i < BIN_AHEAD && i < full->count; i++)
        bin_prefetch(full->pieces[full->count - 1 - i]);
    return true;
}

struct piece *bin_take(struct bin *bin, struct stream_heap *stream_heap, unsigned size_class,
                       uint64_t size_bytes) {
    struct piece *piece = magazine_take(bin->loaded, size_bytes);

    if (piece == NULL)
        piece = magazine_take(bin->spare, size_bytes);
    if (piece == NULL && bin_load(bin, stream_heap, size_class))
        piece = magazine_take(bin->loaded, size_bytes);
    return piece;
}

void bin_put(struct bin *bin, struct stream_heap *stream_heap, unsigned size_class, struct piece *piece) {
    if (bin_push(bin, piece))
        return;
    /* Both are full, or not there yet: the one that is spare goes; else some of what is in it. */
    struct magazine *empty = depot_put(stream_heap->depot, size_class, bin->spare);
    if (empty != NULL && empty == bin->spare) {
        pthread_mutex_lock(&stream_heap->lock);
        depot_give_magazine_locked(stream_heap, empty, BIN_BATCH);
        pthread_mutex_unlock(&stream_heap->lock);
    }
    bin->spare = bin->loaded;
    bin->loaded = empty;
    if (bin_push(bin, piece))
        return;
    pthread_mutex_lock(&stream_heap->lock); /* no memory for a magazine */
    stream_heap_give_locked(stream_heap, piece);
    pthread_mutex_unlock(&stream_heap->lock);
}

void bin_flush_locked(struct bin *bin, struct stream_heap *stream_heap) {
    depot_give_magazine_locked(stream_heap, bin->spare, UINT_MAX);
    depot_give_magazine_locked(stream_heap, bin->loaded, UINT_MAX);
}

void bin_flush(struct bin *bin, struct stream_heap *stream_heap) {
    if (magazine_is_empty(bin->loaded) && magazine_is_empty(bin->spare))
        return;
    pthread_mutex_lock(&stream_heap->lock);
    bin_flush_locked(bin, stream_heap);
    pthread_mutex_unlock(&stream_heap->lock);
}

void bin_deinit(struct bin *bin) {
    free(bin->loaded);
    free(bin->spare);
    *bin = (struct bin){0};
}
