/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/staging/staging.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/units.h"
#include "client/api/client.h"
#include "client/session/error.h"
#include "client/include/gpupool/staging.h"
#include "client/objects/staging/job.h"

/* --- a client's staging --- */

void staging_init(struct staging *staging) {
    staging->threads = 1;
    staging->chunk_bytes = STAGING_CHUNK_DEFAULT_BYTES;
    crew_init(&staging->crew);
}

void staging_stop(struct staging *staging) {
    crew_stop(&staging->crew);
}

void staging_deinit(struct staging *staging) {
    crew_deinit(&staging->crew);
}

/* The program has the other half of the processors for what it does itself. */
static unsigned default_threads(void) {
    cpu_set_t set;
    unsigned half = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) / 2 : 1;
    return half < 1 ? 1 : half < STAGING_THREADS_DEFAULT_MAX ? half : STAGING_THREADS_DEFAULT_MAX;
}

static const char *setting(const char *name) {
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? text : NULL;
}

int staging_configure(struct staging *staging, bool with_threads) {
    const char *threads = setting("GPUPOOL_STAGING_THREADS"), *chunk = setting("GPUPOOL_STAGING_CHUNK");
    unsigned long number = 0;
    uint64_t bytes;

    if (threads != NULL) {
        char *end;
        number = strtoul(threads, &end, 10);
        if (*threads < '0' || *threads > '9' || *end != '\0' || number < 1 || number > CREW_THREADS_MAX + 1)
            return error_set(GPUPOOL_E_INVALID, "GPUPOOL_STAGING_THREADS is '%s': not a number from 1 to %u",
                             threads, CREW_THREADS_MAX + 1);
    }
    if (chunk != NULL) {
        if (units_parse_bytes(chunk, &bytes) < 0 || bytes < STAGING_CHUNK_MIN_BYTES ||
            bytes > STAGING_CHUNK_MAX_BYTES)
            return error_set(GPUPOOL_E_INVALID, "GPUPOOL_STAGING_CHUNK is '%s': not a size from %s to %s",
                             chunk, BYTES_TEXT(STAGING_CHUNK_MIN_BYTES), BYTES_TEXT(STAGING_CHUNK_MAX_BYTES));
        staging->chunk_bytes = bytes;
    }
    staging->threads = !with_threads ? 1 : number > 0 ? (unsigned)number : default_threads();
    return 0;
}

/* --- the public calls --- */

static bool wraps(const void *memory, uint64_t size_bytes) {
    return size_bytes > UINTPTR_MAX - (uintptr_t)memory;
}

/* Checks what all of them take; the job has it in it. *ret_nothing: there is nothing to be done. */
static int prepare(struct gpupool_client *client, int device, void *stream, struct job *job,
                   bool *ret_nothing) {
    int r = client_enter(client);
    if (r == 0)
        r = client_need_device(client, device, &job->gpu);
    if (r < 0)
        return r;
    *ret_nothing = job->size_bytes == 0;
    if (*ret_nothing)
        return 0;
    if (job->on_device == NULL)
        return error_set(GPUPOOL_E_INVALID, "the device memory is NULL");
    if (job->is_file && job->fd < 0)
        return error_set(GPUPOOL_E_INVALID, "%d is no descriptor: the file is not open", job->fd);
    if (!job->is_file && job->in_memory == NULL)
        return error_set(GPUPOOL_E_INVALID, "the ordinary memory is NULL");
    if (wraps(job->on_device, job->size_bytes) || wraps(job->in_memory, job->size_bytes))
        return error_set(GPUPOOL_E_INVALID, "no memory has %" PRIu64 " bytes there", job->size_bytes);
    if (stream == GPUPOOL_NO_STREAM)
        return error_set(GPUPOOL_E_INVALID, "a stream is needed: the copy is made in its order");
    r = devices_check_stream(job->gpu, (unsigned)device, stream);
    if (r < 0)
        return r;
    job->client = client;
    job->device = (unsigned)device;
    job->stream = stream;
    return client_host_pool_near(client, (unsigned)device, &job->pool);
}

static int run(struct gpupool_client *client, int device, void *stream, struct job *job, const char *doing) {
    bool nothing = false;
    int r = prepare(client, device, stream, job, &nothing);
    if (r == 0 && !nothing)
        r = job_run(job);
    return r < 0 ? error_prefix(r, "%s %s, device %d", doing, BYTES_TEXT(job->size_bytes), device) : 0;
}

int gpupool_upload(struct gpupool_client *client, int device, void *to, const void *from, uint64_t size_bytes,
                   void *stream) {
    struct job job = {
        .is_upload = true,
        .on_device = to,
        .in_memory = (char *)(uintptr_t)from,
        .size_bytes = size_bytes,
    };
    return error_end(run(client, device, stream, &job, "uploading"));
}

int gpupool_download(struct gpupool_client *client, int device, void *to, const void *from,
                     uint64_t size_bytes, void *stream) {
    struct job job = {
        .on_device = (char *)(uintptr_t)from,
        .in_memory = to,
        .size_bytes = size_bytes,
    };
    return error_end(run(client, device, stream, &job, "downloading"));
}

int gpupool_upload_file(struct gpupool_client *client, int device, void *to, int fd, uint64_t offset_bytes,
                        uint64_t size_bytes, void *stream) {
    struct job job = {
        .is_upload = true,
        .on_device = to,
        .is_file = true,
        .fd = fd,
        .is_sequential = fd >= 0 && lseek(fd, 0, SEEK_CUR) < 0 && errno == ESPIPE,
        .offset_bytes = offset_bytes,
        .size_bytes = size_bytes,
    };
    if (offset_bytes > INT64_MAX || size_bytes > INT64_MAX - offset_bytes)
        return error_set(GPUPOOL_E_INVALID,
                         "uploading a file: no file has %" PRIu64 " bytes from %" PRIu64 " on", size_bytes,
                         offset_bytes);
    if (job.is_sequential && offset_bytes > 0)
        return error_set(
            GPUPOOL_E_INVALID,
            "uploading a file: descriptor %d is a pipe or its like, which has no offset %" PRIu64, fd,
            offset_bytes);
    return error_end(run(client, device, stream, &job, "uploading a file:"));
}
