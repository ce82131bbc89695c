/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLASSIFIER_COMPUTE_H
#define CLASSIFIER_COMPUTE_H
/*
 * The GPU computes (kernels.cu). A simulated GPU runs no kernels, so there the CPU computes in its place, on
 * the same device memory. Both read and write device memory only, in the order of the stream.
 */
#include <gpupool/gpupool.h>

#include "model.h"

struct compute_work {
    struct gpupool_client *client;
    int device;
    void *stream;
    /* all three in device memory */
    const struct model *model;
    const uint8_t *pixels; /* width × height */
    int32_t *scores;       /* MODEL_CLASSES */
    uint32_t width, height;
};

struct compute {
    const char *name; /* "CUDA" or "CPU": how it is called in messages */
    /* Computes the scores, behind the earlier work of the stream. The computation need not be over on return;
     * later work of the stream comes behind it. Returns 0, or -1 after a message on standard error. */
    int (*run)(const struct compute_work *work);
};

#ifdef __cplusplus
extern "C" {
#endif
extern const struct compute compute_on_cpu;
/* NULL where the program was built without nvcc. */
const struct compute *compute_on_cuda(void);
#ifdef __cplusplus
}
#endif

#endif
