/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_SYNCED_USAGE_H
#define CLIENT_OBJECTS_SYNCED_USAGE_H
/*
 * The uses of a piece of memory on the GPU: by the stream that wrote it last, and by those that read it
 * since. Each memory of a synchronised array owns one such record, its host memory too: copies read and write
 * that.
 *
 * A reader comes behind the writer. A writer comes behind the last writer and all readers. A stream
 * does not wait for itself. This object says behind whom (usage_next); client/objects/synced_order.c makes
 * streams wait, and afterwards the access is noted here. So every reader in the record is ordered behind the
 * writer, and noting a write forgets all others: a stream behind the new writer is behind them.
 *
 * A use is a copy of the library's own, which ends with a fence that was left right behind it, or an access:
 * the caller's work comes at some time after the call, so the use is *open*, and the fence is left when
 * another use has to wait for it. It covers what was enqueued until then. The writer's fence stands behind
 * what it wrote; when it goes on reading after that, it is open besides.
 *
 * Data only: no call here waits, or asks the driver for anything.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/fence.h"

/* A stream, by what tells it from all others. */
struct synced_stream {
    void *handle;
    uint64_t thread; /* of the per-thread default stream, which is another one in each; else 0 */
    unsigned device;
};

struct synced_point {
    struct synced_stream stream;
    bool is_open;   /* the stream may have used the memory since the fence */
    bool has_fence; /* behind what is known of the use; a closed use has one */
    struct fence fence;
};

struct synced_usage {
    bool has_writer;
    unsigned count, capacity; /* of the readers */
    unsigned last;            /* the reader that was found last: it will ask again */
    struct synced_point writer;
    struct synced_point *readers; /* owned; each stream once */
};

void usage_deinit(struct synced_usage *usage);

static inline bool synced_stream_is(const struct synced_stream *a, const struct synced_stream *b) {
    return a->handle == b->handle && a->thread == b->thread && a->device == b->device;
}

/* The reader that a stream is; NULL: it is none. */
struct synced_point *usage_find_reader(struct synced_usage *usage, const struct synced_stream *by);

/* Notes a read or a write of a stream that has to wait for no other. False: another stream is in its way, or
 * it is not in the record yet; then nothing is changed. A few loads and stores. */
static inline bool usage_read_at_once(struct synced_usage *usage, const struct synced_stream *by) {
    if (usage->has_writer && synced_stream_is(&usage->writer.stream, by)) {
        usage->writer.is_open = true;
        return true;
    }
    struct synced_point *reader = usage->last < usage->count ? &usage->readers[usage->last] : NULL;
    if (reader == NULL || !synced_stream_is(&reader->stream, by))
        reader = usage_find_reader(usage, by);
    if (reader == NULL)
        return false;
    reader->is_open = true;
    return true;
}

static inline bool usage_write_at_once(struct synced_usage *usage, const struct synced_stream *by) {
    if (!usage->has_writer || usage->count > 0 || !synced_stream_is(&usage->writer.stream, by))
        return false;
    usage->writer.is_open = true;
    usage->writer.has_fence = false;
    return true;
}

/* Room for one more reader. -ENOMEM. */
int usage_reserve(struct synced_usage *usage);

/* Goes through the uses that a read, or a write, of a stream has to come behind; by NULL: one of the CPU,
 * which is no stream. *position is 0 at the beginning. NULL: that was all. */
struct synced_point *usage_next(struct synced_usage *usage, const struct synced_stream *by, bool writes,
                                unsigned *position);

/* Notes what was ordered behind those uses. fence: a copy's; NULL: the use is open. A read wants room that
 * was reserved. */
void usage_note_read(struct synced_usage *usage, const struct synced_stream *by, const struct fence *fence);
void usage_note_write(struct synced_usage *usage, const struct synced_stream *by, const struct fence *fence);

/* The CPU has waited for what the writer wrote, or for all that anybody did. */
void usage_forget_writer(struct synced_usage *usage);
void usage_forget(struct synced_usage *usage);

bool usage_is_valid(const struct synced_usage *usage);

#endif
