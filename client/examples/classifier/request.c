/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "image.h"
#include "request.h"

static int complain(const struct request *request, const char *what) {
    fprintf(stderr, "classifier: %s: %s: %s\n", request->path, what, gpupool_error_text());
    return -1;
}

int request_init(struct request *ret_request, struct worker *worker, void *stream) {
    struct request request = {.worker = worker, .stream = stream};

    if (gpupool_pair_init(&request.pixels, worker->client, worker->device, 0) < 0 ||
        gpupool_pair_init(&request.scores, worker->client, worker->device, 0) < 0) {
        fprintf(stderr, "classifier: making a pair: %s\n", gpupool_error_text());
        return -1;
    }
    *ret_request = request;
    return 0;
}

int request_prepare(struct request *request, const char *path) {
    struct image image;
    int r = -1;

    request->path = path;
    if (image_open(&image, path) < 0)
        return -1;
    uint8_t *pixels =
        GPUPOOL_PAIR_HOST(&request->pixels, uint8_t, (uint64_t)image.width * image.height, request->stream);
    if (pixels == NULL)
        complain(request, "pinned memory for the pixels");
    else
        r = image_decode(&image, pixels);
    request->width = image.width;
    request->height = image.height;
    image_close(&image);
    return r;
}

/* The weights, where the stream finds them in device memory. */
static int weights_on_device(struct worker *worker, void *stream, void **ret_model) {
    pthread_mutex_lock(&worker->weights_lock);
    int r = gpupool_synced_device(worker->weights, GPUPOOL_READ, ret_model, stream);
    pthread_mutex_unlock(&worker->weights_lock);
    return r;
}

static int enqueue(struct request *request) {
    struct worker *worker = request->worker;
    uint64_t size_bytes = (uint64_t)request->width * request->height;
    void *model;

    uint8_t *pixels = GPUPOOL_PAIR_DEVICE(&request->pixels, uint8_t, size_bytes, request->stream);
    if (pixels == NULL)
        return complain(request, "device memory for the pixels");
    int32_t *scores = GPUPOOL_PAIR_DEVICE(&request->scores, int32_t, MODEL_CLASSES, request->stream);
    if (scores == NULL)
        return complain(request, "device memory for the scores");
    if (GPUPOOL_PAIR_HOST(&request->scores, int32_t, MODEL_CLASSES, request->stream) == NULL)
        return complain(request, "pinned memory for the scores");
    if (gpupool_pair_copy_to_device(&request->pixels, size_bytes, request->stream) < 0)
        return complain(request, "copying the pixels to the device");
    if (weights_on_device(worker, request->stream, &model) < 0)
        return complain(request, "the weights");
    struct compute_work work = {worker->client, worker->device, request->stream, model,
                                pixels,         scores,         request->width,  request->height};
    if (worker->compute->run(&work) < 0)
        return -1;
    if (gpupool_pair_copy_to_host(&request->scores, MODEL_CLASSES * sizeof *scores, request->stream) < 0)
        return complain(request, "copying the scores from the device");
    return 0;
}

int request_submit(struct request *request) {
    int r = enqueue(request);
    if (r < 0) /* the next image is not written where a copy may still read */
        gpupool_stream_synchronize(request->worker->client, request->worker->device, request->stream);
    return r;
}

int request_finish(struct request *request, int32_t ret_scores[MODEL_CLASSES]) {
    if (gpupool_stream_synchronize(request->worker->client, request->worker->device, request->stream) < 0)
        return complain(request, "computing");
    memcpy(ret_scores, request->scores.host.data, MODEL_CLASSES * sizeof *ret_scores);
    return 0;
}

void request_compute_on_cpu(const struct request *request, int32_t ret_scores[MODEL_CLASSES]) {
    model_run(request->worker->model, request->pixels.host.data, request->width, request->height, ret_scores);
}

void request_deinit(struct request *request) {
    if (request->worker == NULL)
        return;
    gpupool_pair_clear(&request->pixels, request->stream);
    gpupool_pair_clear(&request->scores, request->stream);
    request->worker = NULL;
}
