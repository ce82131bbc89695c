/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/synced_usage.h"

#include <errno.h>
#include <stdlib.h>

/* More streams than most programs have for one array. */
#define READERS_FIRST 4u

void usage_deinit(struct synced_usage *usage) {
    free(usage->readers);
    *usage = (struct synced_usage){0};
}

int usage_reserve(struct synced_usage *usage) {
    if (usage->count < usage->capacity)
        return 0;
    unsigned capacity = usage->capacity == 0 ? READERS_FIRST : 2 * usage->capacity;
    struct synced_point *readers = realloc(usage->readers, capacity * sizeof *readers);
    if (readers == NULL)
        return -ENOMEM;
    usage->readers = readers;
    usage->capacity = capacity;
    return 0;
}

struct synced_point *usage_find_reader(struct synced_usage *usage, const struct synced_stream *by) {
    for (unsigned i = 0; i < usage->count; i++)
        if (synced_stream_is(&usage->readers[i].stream, by)) {
            usage->last = i;
            return &usage->readers[i];
        }
    return NULL;
}

struct synced_point *usage_next(struct synced_usage *usage, const struct synced_stream *by, bool writes,
                                unsigned *position) {
    /* A reader came behind what the writer wrote before it read the first time. */
    bool is_reader = by != NULL && usage_find_reader(usage, by) != NULL;
    unsigned end = writes ? usage->count + 1 : 1;

    while (*position < end) {
        unsigned now = (*position)++;
        struct synced_point *point = now == 0 ? &usage->writer : &usage->readers[now - 1];
        if (now == 0 && (!usage->has_writer || (is_reader && !(writes && point->is_open))))
            continue;
        if (now > 0 && usage->has_writer && usage->writer.is_open &&
            synced_stream_is(&point->stream, &usage->writer.stream))
            continue; /* the writer's fence is the later one */
        if (by == NULL || !synced_stream_is(&point->stream, by))
            return point;
    }
    return NULL;
}

void usage_note_read(struct synced_usage *usage, const struct synced_stream *by, const struct fence *fence) {
    bool is_writer = usage->has_writer && synced_stream_is(&usage->writer.stream, by);

    if (is_writer && (fence == NULL || usage->writer.is_open)) {
        usage->writer.is_open = true; /* a wait for all of it includes this */
        return;
    }
    /* A copy of the writer's own has its entry among the readers: who reads what was written must not wait
     * for it. */
    struct synced_point *reader = usage_find_reader(usage, by);
    if (reader == NULL) {
        reader = &usage->readers[usage->count];
        usage->last = usage->count++;
        *reader = (struct synced_point){.stream = *by};
    }
    if (fence == NULL) {
        reader->is_open = true;
    } else {
        reader->fence = *fence;
        reader->has_fence = true;
    }
}

void usage_note_write(struct synced_usage *usage, const struct synced_stream *by, const struct fence *fence) {
    usage->count = 0;
    usage->last = 0;
    usage->has_writer = true;
    usage->writer = (struct synced_point){.stream = *by, .is_open = fence == NULL};
    if (fence != NULL) {
        usage->writer.fence = *fence;
        usage->writer.has_fence = true;
    }
}

void usage_forget_writer(struct synced_usage *usage) {
    if (!usage->writer.is_open) /* else it may read on */
        usage->has_writer = false;
}

void usage_forget(struct synced_usage *usage) {
    usage->has_writer = false;
    usage->count = 0;
    usage->last = 0;
}

static bool point_is_valid(const struct synced_point *point) {
    return (point->is_open || point->has_fence) &&
           (point->stream.thread != 0) == (point->stream.handle == GPUPOOL_PER_THREAD);
}

bool usage_is_valid(const struct synced_usage *usage) {
    if (usage->count > usage->capacity || (usage->has_writer && !point_is_valid(&usage->writer)))
        return false;
    for (unsigned i = 0; i < usage->count; i++) {
        if (!point_is_valid(&usage->readers[i]))
            return false;
        for (unsigned j = 0; j < i; j++)
            if (synced_stream_is(&usage->readers[i].stream, &usage->readers[j].stream))
                return false;
    }
    return true;
}
