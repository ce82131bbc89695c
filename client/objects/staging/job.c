/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/staging/job.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "client/api/client.h"
#include "client/objects/staging/block.h"
#include "client/objects/staging/staging.h"
#include "client/session/error.h"

/* The calling thread looks at fences at these intervals while there is nothing else for it to do, ever
 * longer. */
#define PAUSE_NS_MIN (20 * NS_PER_US)
#define PAUSE_NS_MAX NS_PER_MS
/* And, when it has waited for long, so often asks the driver whether the device is still there. */
#define PAUSES_A_QUERY 16u

/* How long not to ask for more blocks after the pool had none: what the client keeps idle is given up each
 * time. */
#define MORE_BLOCKS_NS_MIN (2 * NS_PER_MS)

/* --- chunks --- */

static uint64_t chunk_offset(const struct job *job, const struct slot *slot) {
    return slot->chunk * job->chunk_bytes;
}

static uint64_t chunk_size(const struct job *job, const struct slot *slot) {
    uint64_t rest = job->size_bytes - chunk_offset(job, slot);
    return rest < job->chunk_bytes ? rest : job->chunk_bytes;
}

/* A chunk for each thread to do twice, so that those who are quicker do more. */
static void cut(struct job *job, uint64_t chunk_max_bytes) {
    uint64_t share = job->size_bytes / (2 * (uint64_t)job->threads);

    if (job->size_bytes <= STAGING_ALONE_BYTES)
        share = STAGING_ALONE_BYTES;
    if (share < STAGING_ALONE_BYTES / 4)
        share = STAGING_ALONE_BYTES / 4;
    share = (share + COPY_CHUNK_MIN_BYTES - 1) / COPY_CHUNK_MIN_BYTES * COPY_CHUNK_MIN_BYTES;
    job->chunk_bytes = share < chunk_max_bytes ? share : chunk_max_bytes;
}

/* --- slots --- */

static bool has_landed(const struct job *job, const struct slot *slot) {
    return slot->state == SLOT_FLYING && fence_is_ready(&job->client->session, slot->fence);
}

static bool can_be_worked_on(const struct job *job, const struct slot *slot) {
    return (job->is_upload && slot->state == SLOT_FREE) || has_landed(job, slot);
}

static struct slot *find_work(const struct job *job) {
    if (job->failed || (job->is_upload && job->begun == job->chunk_count))
        return NULL;
    for (unsigned i = 0; i < job->slot_count; i++)
        if (can_be_worked_on(job, &job->slots[i]))
            return (struct slot *)(uintptr_t)&job->slots[i];
    return NULL;
}

bool job_has_work_locked(const struct job *job) {
    return find_work(job) != NULL;
}

struct slot *job_take_locked(struct job *job) {
    struct slot *slot = find_work(job);

    if (slot == NULL)
        return NULL;
    if (job->is_upload)
        slot->chunk = job->begun++;
    slot->state = SLOT_WORKING;
    job->working++;
    return slot;
}

/* One that waits for the driver's part. */
static struct slot *find_to_enqueue(struct job *job) {
    enum slot_state wanted = job->is_upload ? SLOT_FULL : SLOT_FREE;

    if (!job->is_upload && job->begun == job->chunk_count)
        return NULL;
    for (unsigned i = 0; i < job->slot_count; i++)
        if (job->slots[i].state == wanted)
            return &job->slots[i];
    return NULL;
}

/* --- work --- */

static bool wait_for_input(int fd) {
    struct pollfd input = {.fd = fd, .events = POLLIN};
    return poll(&input, 1, -1) >= 0 || errno == EINTR;
}

static void read_chunk(const struct job *job, struct slot *slot) {
    uint64_t size_bytes = chunk_size(job, slot), offset_bytes = job->offset_bytes + chunk_offset(job, slot);

    while (slot->done_bytes < size_bytes) {
        char *to = (char *)slot->block.data + slot->done_bytes;
        size_t rest = size_bytes - slot->done_bytes;
        ssize_t n = job->is_sequential ? read(job->fd, to, rest)
                                       : pread(job->fd, to, rest, (off_t)(offset_bytes + slot->done_bytes));
        if (n > 0)
            slot->done_bytes += (uint64_t)n;
        else if (n == 0)
            return;
        else if (errno != EINTR && !(errno == EAGAIN && wait_for_input(job->fd))) {
            slot->error = errno;
            return;
        }
    }
}

void job_do(struct job *job, struct slot *slot) {
    uint64_t size_bytes = chunk_size(job, slot);

    slot->done_bytes = 0;
    slot->error = 0;
    if (job->is_file) {
        read_chunk(job, slot);
        return;
    }
    char *memory = job->in_memory + chunk_offset(job, slot);
    if (job->is_upload)
        memcpy(slot->block.data, memory, size_bytes);
    else
        memcpy(memory, slot->block.data, size_bytes);
    slot->done_bytes = size_bytes;
}

/* Chunks are begun in order: when all that were begun are done, it is known where the first failure was. */
static void note_file_failure(struct job *job, const struct slot *slot) {
    uint64_t offset_bytes = job->offset_bytes + chunk_offset(job, slot) + slot->done_bytes;

    job->failed = true;
    if (offset_bytes < job->file_offset) {
        job->file_offset = offset_bytes;
        job->file_error = slot->error;
    }
}

void job_done_locked(struct job *job, struct slot *slot) {
    bool is_whole = slot->done_bytes == chunk_size(job, slot);

    job->working--;
    slot->state = job->is_upload && is_whole ? SLOT_FULL : SLOT_FREE;
    if (!is_whole)
        note_file_failure(job, slot);
    else if (!job->is_upload)
        job->finished++;
    if (job->waits)
        pthread_cond_signal(&job->changed);
}

void job_rest_locked(struct job *job) {
    while (job->working > 0) {
        job->waits = true;
        pthread_cond_wait(&job->changed, &job->staging->workers.lock);
        job->waits = false;
    }
}

/* --- the driver's part --- */

/* Waits for what no fence tells the end of. A driver that cannot wait even for the device does no work there
 * any more. */
static void land(const struct job *job) {
    if (job->gpu->stream_synchronize(job->device, job->stream) != 0)
        (void)job->gpu->device_synchronize(job->device);
}

static int enqueue(const struct job *job, struct slot *slot) {
    char *on_device = job->on_device + chunk_offset(job, slot), *block = slot->block.data;
    int error = job->gpu->memory_copy(job->device, job->is_upload ? on_device : block,
                                      job->is_upload ? block : on_device, chunk_size(job, slot), job->stream);
    if (error != 0)
        return devices_fail_on(job->gpu, job->device, error, "copying");
    int r = fences_enqueue(&job->client->session, job->device, job->stream, &slot->fence);
    if (r < 0)
        land(job);
    return r;
}

/* The lock is given up meanwhile. */
static int enqueue_locked(struct job *job, struct slot *slot) {
    pthread_mutex_t *lock = &job->staging->workers.lock;

    if (!job->is_upload)
        slot->chunk = job->begun++;
    pthread_mutex_unlock(lock); /* no other thread takes the slot in this state */
    int r = enqueue(job, slot);
    pthread_mutex_lock(lock);
    slot->state = r == 0 ? SLOT_FLYING : SLOT_FREE;
    if (r == 0 && job->is_upload)
        job->finished++;
    return r;
}

/* --- the ring --- */

static bool wants_more_blocks(const struct job *job) {
    unsigned available = 0, flying = 0;

    if (job->slot_count == 2 * job->threads + JOB_SLOTS_MORE || job->begun == job->chunk_count)
        return false;
    for (unsigned i = 0; i < job->slot_count; i++) {
        available += can_be_worked_on(job, &job->slots[i]);
        flying += job->slots[i].state == SLOT_FLYING;
    }
    /* up: somebody has nothing to fill; down: the copy engine may soon have nothing to do */
    bool wants = job->is_upload
                     ? available + job->working < job->threads && available < job->chunk_count - job->begun
                     : flying < job->threads + JOB_SLOTS_MORE;
    return wants && (job->more_blocks_ns == 0 || clock_now_ns() >= job->more_blocks_ns);
}

static void add_block_locked(struct job *job) {
    pthread_mutex_t *lock = &job->staging->workers.lock;
    struct gpupool_buffer block;

    pthread_mutex_unlock(lock);
    bool had = block_acquire_more(job->client, job->pool, job->chunk_bytes, &block);
    pthread_mutex_lock(lock);
    if (had) {
        job->slots[job->slot_count++] = (struct slot){.state = SLOT_FREE, .block = block};
        return;
    }
    job->more_blocks_pause_ns =
        job->more_blocks_pause_ns == 0 ? MORE_BLOCKS_NS_MIN : 2 * job->more_blocks_pause_ns;
    job->more_blocks_ns = clock_now_ns() + job->more_blocks_pause_ns;
}

static void give_blocks_back(struct job *job) {
    for (unsigned i = 0; i < job->slot_count; i++) {
        const struct slot *slot = &job->slots[i];
        block_release(job->client, &slot->block, slot->state == SLOT_FLYING ? slot->fence : FENCE_NONE);
    }
}

/* --- waiting --- */

struct patience {
    uint64_t pause_ns;
    unsigned pauses;
};

/* A device that is lost never writes its fences. */
static int check_device_locked(struct job *job) {
    pthread_mutex_t *lock = &job->staging->workers.lock;

    pthread_mutex_unlock(lock);
    int error = job->gpu->stream_query(job->device, job->stream);
    pthread_mutex_lock(lock);
    return error == 0 || error == GPU_ERROR_NOT_READY
               ? 0
               : devices_fail_on(job->gpu, job->device, error, "waiting for a copy");
}

static int wait_for_stream_locked(struct job *job) {
    pthread_mutex_t *lock = &job->staging->workers.lock;

    pthread_mutex_unlock(lock);
    int error = job->gpu->stream_synchronize(job->device, job->stream);
    pthread_mutex_lock(lock);
    return error == 0 ? 0 : devices_fail_on(job->gpu, job->device, error, "waiting for a copy");
}

/* Waits for a fence, or for another thread's work. */
static int wait_locked(struct job *job, struct patience *patience) {
    pthread_mutex_t *lock = &job->staging->workers.lock;

    if (job->chunk_count == 1 && job->working == 0 && patience->pauses++ == 0)
        return wait_for_stream_locked(job); /* the driver knows best how */
    job->waits = true;
    (void)thread_condition_wait(&job->changed, lock, clock_now_ns() + patience->pause_ns);
    job->waits = false;
    if (patience->pause_ns < PAUSE_NS_MAX) {
        patience->pause_ns *= 2;
        return 0;
    }
    return ++patience->pauses % PAUSES_A_QUERY == 0 ? check_device_locked(job) : 0;
}

/* --- a job's course --- */

static int do_all_locked(struct job *job) {
    struct copy_workers *workers = &job->staging->workers;
    struct patience patience = {PAUSE_NS_MIN, 0};
    int r = 0;

    while (r == 0 && !job->failed && job->finished < job->chunk_count) {
        struct slot *slot = find_to_enqueue(job);
        if (slot != NULL) {
            r = enqueue_locked(job, slot);
        } else if (wants_more_blocks(job)) {
            add_block_locked(job);
            copy_workers_wake_locked(workers, job);
            continue;
        } else if ((slot = job_take_locked(job)) != NULL) {
            copy_workers_wake_locked(workers, job);
            pthread_mutex_unlock(&workers->lock);
            job_do(job, slot);
            pthread_mutex_lock(&workers->lock);
            job_done_locked(job, slot);
        } else {
            r = wait_locked(job, &patience);
            continue;
        }
        patience = (struct patience){PAUSE_NS_MIN, 0};
    }
    if (r < 0)
        job->failed = true;
    return r;
}

static int file_failure(const struct job *job) {
    if (job->file_error == 0)
        return error_set(GPUPOOL_E_INVALID,
                         "the file ends at offset %" PRIu64 ", where %" PRIu64 " bytes were still to be read",
                         job->file_offset, job->offset_bytes + job->size_bytes - job->file_offset);
    return error_set(GPUPOOL_E_DRIVER, "reading descriptor %d at offset %" PRIu64 ": %s (%s)", job->fd,
                     job->file_offset, strerrorname_np(job->file_error), strerrordesc_np(job->file_error));
}

int job_run(struct job *job) {
    const struct copy_options *copying = &job->client->copying;
    struct copy_workers *workers = &job->staging->workers;

    job->threads = job->is_sequential ? 1 : copying->threads;
    job->file_offset = UINT64_MAX;
    cut(job, copying->chunk_bytes);
    uint64_t first_bytes = job->size_bytes < job->chunk_bytes ? job->size_bytes : job->chunk_bytes;
    int r = block_acquire(job->client, job->pool, first_bytes, &job->slots[0].block);
    if (r < 0)
        return r;
    job->slot_count = 1;
    if (job->slots[0].block.size_bytes < first_bytes)
        job->chunk_bytes = job->slots[0].block.size_bytes;
    job->chunk_count = (job->size_bytes + job->chunk_bytes - 1) / job->chunk_bytes;
    bool is_shared = job->chunk_count > 1 && job->threads > 1;

    thread_condition_init(&job->changed);
    list_init(&job->link);
    if (is_shared)
        copy_workers_give(workers, job, job->threads - 1);
    pthread_mutex_lock(&workers->lock);
    r = do_all_locked(job);
    pthread_mutex_unlock(&workers->lock);
    copy_workers_take_back(workers, job);
    pthread_cond_destroy(&job->changed);
    if (r == 0 && job->failed)
        r = file_failure(job);
    give_blocks_back(job);
    return r;
}
