/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLASSIFIER_REQUEST_H
#define CLASSIFIER_REQUEST_H
/*
 * A request: one image on its way through the GPU. Its input (pixels) and its output (scores) are pairs,
 * pinned host memory and device memory that stay from image to image and only grow, so that a worker that has
 * seen its largest image takes no memory any more. Its states:
 *
 *     idle ── request_prepare() ──▶ prepared ── request_submit() ──▶ under way ── request_finish() ──▶ idle
 *              (CPU: decodes into           (GPU: copy in, compute,          (waits for the stream)
 *               pinned memory)               copy out, in stream order)
 *
 * A step that fails leaves the request idle, after a message on standard error; it can be used for the next
 * image. A request is used by one thread at a time.
 *
 * The weights are one synchronised array for all requests: the first request on the device has them copied
 * there, and a later request on another stream only waits, on the GPU, for that copy.
 */
#include <gpupool/gpupool.h>
#include <gpupool/pair.h>
#include <gpupool/synced.h>
#include <pthread.h>

#include "compute.h"
#include "model.h"

/* The objects that all requests share. */
struct worker {
    struct gpupool_client *client;
    int device;
    const struct compute *compute;
    const struct model *model;      /* of the CPU path, in the program's own memory */
    pthread_mutex_t weights_lock;   /* one thread at a time uses an array */
    struct gpupool_synced *weights; /* a struct model */
};

struct request {
    struct worker *worker; /* borrowed */
    void *stream;          /* borrowed: its own or shared with requests of the same thread */
    const char *path;      /* borrowed: the image at hand */
    uint32_t width, height;
    struct gpupool_pair pixels, scores;
};

/* Return 0, or -1 after a message. */
int request_init(struct request *ret_request, struct worker *worker, void *stream);
int request_prepare(struct request *request, const char *path);
int request_submit(struct request *request);
int request_finish(struct request *request, int32_t ret_scores[MODEL_CLASSES]);

/* The CPU path, on the pixels of the image that was finished last. */
void request_compute_on_cpu(const struct request *request, int32_t ret_scores[MODEL_CLASSES]);

/* Gives the memory back; nothing may be under way. Accepts a request that is all zeros. */
void request_deinit(struct request *request);

#endif
