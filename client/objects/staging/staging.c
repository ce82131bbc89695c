/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/staging/staging.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/units.h"
#include "client/api/client.h"
#include "client/include/gpupool/staging.h"
#include "client/objects/staging/job.h"
#include "client/session/error.h"

/* --- a client's staging --- */

static void end(struct client_attachment *attachment, bool is_child) {
    struct staging *staging = container_of(attachment, struct staging, attachment);

    if (!is_child) {
        copy_workers_stop(&staging->workers);
        copy_workers_deinit(&staging->workers);
    }
    free(staging);
}

struct staging *staging_of(struct gpupool_client *client) {
    struct client_attachment *attachment = client_attachment_of(client, end);
    return attachment == NULL ? NULL : container_of(attachment, struct staging, attachment);
}

/* The staging of a client, made by its first copy. 0 or NO_MEMORY. */
static int staging_need(struct gpupool_client *client, struct staging **ret_staging) {
    struct staging *staging = staging_of(client);

    if (staging == NULL) {
        staging = calloc(1, sizeof *staging);
        if (staging == NULL)
            return error_no_memory();
        staging->attachment.end = end;
        copy_workers_init(&staging->workers);
        struct client_attachment *attached = client_attach(client, &staging->attachment);
        if (attached != &staging->attachment) { /* another thread was quicker */
            end(&staging->attachment, false);
            staging = container_of(attached, struct staging, attachment);
        }
    }
    *ret_staging = staging;
    return 0;
}

/* --- the public calls --- */

static bool wraps(const void *memory, uint64_t size_bytes) {
    return size_bytes > UINTPTR_MAX - (uintptr_t)memory;
}

/* Checks what all of them take; the job has it in it. *ret_nothing: there is nothing to be done. */
static int prepare(struct gpupool_client *client, int device, void *stream, struct job *job,
                   bool *ret_nothing) {
    int r = client_enter_served(client, device, &job->gpu);
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
    r = staging_need(client, &job->staging);
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
