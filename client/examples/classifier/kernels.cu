/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network as one kernel: a block of threads takes an image through all layers, whose activations (4.5
 * KiB) fit into its shared memory. Blocks of several requests run beside each other, from several streams.
 * The order in which a sum is made up is another than on the CPU, and makes no difference to integers.
 */
#include <cuda_runtime.h>
#include <stdio.h>

#include "compute.h"

#define THREADS 256u
#define WARP    32u

/* One layer, all threads of the block: see convolve() in model.c. in and out lie in shared memory. */
template <unsigned IN_CHANNELS, unsigned OUT_CHANNELS, unsigned SIDE>
__device__ void convolve(const uint8_t *in, const int8_t *weights, const int32_t *biases,
                         const int32_t *multipliers, uint8_t *out) {
    const unsigned half = SIDE / 2;

    for (unsigned i = threadIdx.x; i < OUT_CHANNELS * half * half; i += THREADS) {
        unsigned channel = i / (half * half), out_y = i / half % half, out_x = i % half;
        int32_t sums[4];
        for (unsigned corner = 0; corner < 4; corner++)
            sums[corner] = biases[channel];
        for (unsigned from = 0; from < IN_CHANNELS; from++)
            for (unsigned k = 0; k < MODEL_KERNEL; k++) {
                int32_t weight = weights[(channel * IN_CHANNELS + from) * MODEL_KERNEL + k];
                for (unsigned corner = 0; corner < 4; corner++) {
                    unsigned y = 2 * out_y + corner / 2 + k / 3 - 1, x = 2 * out_x + corner % 2 + k % 3 - 1;
                    if (y < SIDE && x < SIDE)
                        sums[corner] += weight * in[(from * SIDE + y) * SIDE + x];
                }
            }
        uint8_t largest = 0;
        for (unsigned corner = 0; corner < 4; corner++) {
            uint8_t activation = model_activation(sums[corner], multipliers[channel]);
            largest = activation > largest ? activation : largest;
        }
        out[i] = largest;
    }
}

__global__ void __launch_bounds__(THREADS) classify(const struct model *model, const uint8_t *pixels,
                                                    uint32_t width, uint32_t height, int32_t *scores) {
    __shared__ uint8_t image[MODEL_SIDE * MODEL_SIDE];
    __shared__ uint8_t layer_1[MODEL_CHANNELS_1 * MODEL_SIDE_1 * MODEL_SIDE_1];
    __shared__ uint8_t layer_2[MODEL_CHANNELS_2 * MODEL_SIDE_2 * MODEL_SIDE_2];
    __shared__ uint8_t layer_3[MODEL_FEATURES];

    for (unsigned i = threadIdx.x; i < MODEL_SIDE * MODEL_SIDE; i += THREADS)
        image[i] = model_resample(pixels, width, height, i % MODEL_SIDE, i / MODEL_SIDE);
    __syncthreads();
    convolve<1, MODEL_CHANNELS_1, MODEL_SIDE>(image, &model->weights_1[0][0][0], model->bias_1,
                                              model->multiplier_1, layer_1);
    __syncthreads();
    convolve<MODEL_CHANNELS_1, MODEL_CHANNELS_2, MODEL_SIDE_1>(layer_1, &model->weights_2[0][0][0],
                                                               model->bias_2, model->multiplier_2, layer_2);
    __syncthreads();
    convolve<MODEL_CHANNELS_2, MODEL_CHANNELS_3, MODEL_SIDE_2>(layer_2, &model->weights_3[0][0][0],
                                                               model->bias_3, model->multiplier_3, layer_3);
    __syncthreads();
    /* a warp for each class */
    for (unsigned c = threadIdx.x / WARP; c < MODEL_CLASSES; c += THREADS / WARP) {
        int32_t sum = 0;
        for (unsigned i = threadIdx.x % WARP; i < MODEL_FEATURES; i += WARP)
            sum += model->weights_scores[c][i] * layer_3[i];
        for (unsigned distance = WARP / 2; distance > 0; distance /= 2)
            sum += __shfl_down_sync(0xffffffffu, sum, distance);
        if (threadIdx.x % WARP == 0)
            scores[c] = model->bias_scores[c] + sum;
    }
}

static int run_on_cuda(const struct compute_work *work) {
    void *arguments[] = {(void *)&work->model, (void *)&work->pixels, (void *)&work->width,
                         (void *)&work->height, (void *)&work->scores};
    cudaError_t r = cudaSetDevice(work->device); /* this runtime's own idea of it, on this thread */

    /* As <<<>>> does, but for a variable that nvcc guards with C++'s library, which this program does not
     * link. */
    if (r == cudaSuccess)
        r = cudaLaunchKernel((const void *)classify, dim3(1), dim3(THREADS), arguments, 0,
                             (cudaStream_t)work->stream);
    if (r != cudaSuccess) {
        fprintf(stderr, "classifier: launching the kernel: %s\n", cudaGetErrorString(r));
        return -1;
    }
    return 0;
}

static const struct compute cuda = {"CUDA", run_on_cuda};

extern "C" const struct compute *compute_on_cuda(void) {
    return &cuda;
}
