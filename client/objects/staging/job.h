/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_OBJECTS_STAGING_JOB_H
#define CLIENT_OBJECTS_STAGING_JOB_H
/*
 * A job: one copy between ordinary memory, or a file, and a device. It is on the stack of the call that makes
 * it, and cut into chunks, each of which goes through a slot of its ring: a block of pinned memory.
 *
 *     up    FREE ──work──▶ WORKING ──▶ FULL ──enqueue──▶ FLYING ──fence──▶ FREE
 *     down  FREE ──enqueue──▶ FLYING ──fence──▶ WORKING ──▶ FREE
 *
 * Work (filling a block, emptying it) is done by the calling thread and by the copy workers, in any order;
 * enqueueing, the driver's part, by the calling thread alone. A slot whose fence is ready may be worked on
 * without anybody having said that it is free. Chunks are begun in order, and done in any.
 *
 * Blocks are taken when they are wanted, as far as there are any without waiting: a ring that the machine's
 * copy engine outruns stays small. When a job ends, as it should or not, its blocks go back behind their
 * fences.
 *
 * The copy workers' lock guards the members that are marked below. A slot's block and chunk belong to the
 * thread that has the slot in WORKING, else to the calling thread.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "client/include/gpupool/gpupool.h"
#include "client/objects/staging/copy_workers.h"
#include "client/session/fence.h"

struct gpu;
struct staging;

/* Each thread has one at hand, as many again are on their way, and some cover the time in which the calling
 * thread copies a chunk itself, so that the copy engine goes on. */
#define JOB_SLOTS_MORE 4u
#define JOB_SLOTS_MAX  (2 * (COPY_WORKERS_MAX + 1) + JOB_SLOTS_MORE)

enum slot_state {
    SLOT_FREE,
    SLOT_WORKING,
    SLOT_FULL,
    SLOT_FLYING,
};

struct slot {
    enum slot_state state; /* guarded */
    struct gpupool_buffer block;
    uint64_t chunk;
    struct fence fence;  /* of the last copy between block and device */
    uint64_t done_bytes; /* what the work came to */
    int error;           /* errno that it ended with; 0: none */
};

struct job {
    /* The copy to make. The caller sets these members. */
    struct gpupool_client *client;
    struct staging *staging; /* the client's */
    unsigned device;
    void *stream;
    bool is_upload;
    char *on_device; /* to or from */
    char *in_memory; /* from or to */
    bool is_file;    /* from fd instead, up only */
    int fd;
    bool is_sequential; /* fd can only be read in order, from where it stands */
    uint64_t offset_bytes;
    uint64_t size_bytes;

    /* The job's own. */
    const struct gpu *gpu;
    uint32_t pool;
    uint64_t chunk_bytes, chunk_count;
    struct list link; /* in the copy workers' jobs */
    pthread_cond_t changed;
    bool waits;               /* guarded: the calling thread does, for `changed` */
    uint64_t begun, finished; /* guarded: chunks; finished: enqueued (up), in memory (down) */
    unsigned working;         /* guarded: slots */
    bool failed;              /* guarded: nothing more is begun */
    int file_error;           /* guarded: errno of the earliest failure; 0: the file ended */
    uint64_t file_offset;     /* guarded: where; UINT64_MAX: nowhere */
    unsigned slot_count;      /* guarded */
    unsigned threads;         /* that may share in it, the calling one included */
    uint64_t more_blocks_ns, more_blocks_pause_ns; /* the pool had none: when to ask for more again */
    struct slot slots[JOB_SLOTS_MAX];
};

/* Does the job. 0, or an error with its text, and then what was begun has ended too. */
int job_run(struct job *job);

/* --- for the copy workers --- */

/* Takes a slot that can be worked on, in WORKING. NULL: there is none. */
struct slot *job_take_locked(struct job *job);
bool job_has_work_locked(const struct job *job);
/* Does the work. Without the lock. */
void job_do(struct job *job, struct slot *slot);
/* The slot's work is done. */
void job_done_locked(struct job *job, struct slot *slot);
/* Waits until nothing is being worked on. */
void job_rest_locked(struct job *job);

#endif
