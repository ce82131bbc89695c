/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLASSIFIER_MODEL_H
#define CLASSIFIER_MODEL_H
/*
 * The model: a small convolutional network for handwritten digits, and how it is computed.
 *
 *     an image of any size, 8-bit grey
 *       resampled to 32 × 32
 *       convolution 3 × 3,  1 →  8 channels, ReLU, maximum of 2 × 2:  16 × 16 ×  8
 *       convolution 3 × 3,  8 → 16 channels, ReLU, maximum of 2 × 2:   8 ×  8 × 16
 *       convolution 3 × 3, 16 → 32 channels, ReLU, maximum of 2 × 2:   4 ×  4 × 32
 *       fully connected, 512 → 10 scores
 *
 * Everything is computed in integers: activations are uint8, weights int8, sums int32. Integer sums do not
 * depend on the order of their terms, so a GPU that computes with thousands of threads and a CPU that
 * computes with one agree in every bit, and their results can be compared with ==. Real numbers are in the
 * model only as scales, which were turned into integer multipliers when it was trained (training/train.c).
 *
 * A struct model is the model's file, byte for byte, and what lies in device memory: there are no pointers in
 * it. Numbers are little-endian. This header is C and CUDA C++.
 */
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define MODEL_INLINE static inline __host__ __device__
#else
#define MODEL_INLINE static inline
#endif

#define MODEL_MAGIC      "GPDIGIT1"
#define MODEL_SIDE       32u /* of the image that the network sees */
#define MODEL_CLASSES    10u
#define MODEL_KERNEL     9u /* 3 × 3 */
#define MODEL_CHANNELS_1 8u
#define MODEL_CHANNELS_2 16u
#define MODEL_CHANNELS_3 32u
#define MODEL_SIDE_1     (MODEL_SIDE / 2) /* of what each layer leaves */
#define MODEL_SIDE_2     (MODEL_SIDE_1 / 2)
#define MODEL_SIDE_3     (MODEL_SIDE_2 / 2)
#define MODEL_FEATURES   (MODEL_CHANNELS_3 * MODEL_SIDE_3 * MODEL_SIDE_3)
#define MODEL_SHIFT      24 /* a multiplier of 1 << MODEL_SHIFT stands for 1.0 */
/* With it no sum can leave int32: the largest is of 512 products of 255 and 127. */
#define MODEL_BIAS_MAX (1 << 28)

/* Sums become activations by activation = min(255, round(max(0, sum) * multiplier / 2^24)). */
struct model {
    char magic[8];
    int32_t bias_1[MODEL_CHANNELS_1], multiplier_1[MODEL_CHANNELS_1];
    int32_t bias_2[MODEL_CHANNELS_2], multiplier_2[MODEL_CHANNELS_2];
    int32_t bias_3[MODEL_CHANNELS_3], multiplier_3[MODEL_CHANNELS_3];
    int32_t bias_scores[MODEL_CLASSES];
    float score_unit; /* what 1 of a score stands for, before softmax: only model_probability() uses it */
    int8_t weights_1[MODEL_CHANNELS_1][1][MODEL_KERNEL];
    int8_t weights_2[MODEL_CHANNELS_2][MODEL_CHANNELS_1][MODEL_KERNEL];
    int8_t weights_3[MODEL_CHANNELS_3][MODEL_CHANNELS_2][MODEL_KERNEL];
    int8_t weights_scores[MODEL_CLASSES][MODEL_FEATURES];
};

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Reads a model's file into *ret_model and checks it, so that no contents of a file can make the arithmetic
 * overflow. Returns 0, or -1 after a message on standard error; then *ret_model is undefined.
 */
int model_read(const char *path, struct model *ret_model);

/*
 * The CPU path: scores of an image of width × height pixels, a row after the other without gaps, each side 1
 * or more. The class is the index of the largest score, the first of them where several are equal. Touches
 * nothing else; any thread may.
 */
void model_run(const struct model *model, const uint8_t *pixels, uint32_t width, uint32_t height,
               int32_t scores[MODEL_CLASSES]);

/* The class that the scores speak for, and how sure they are of it, 0…1 (softmax). */
unsigned model_class(const int32_t scores[MODEL_CLASSES]);
double model_probability(const struct model *model, const int32_t scores[MODEL_CLASSES],
                         unsigned class_index);

#ifdef __cplusplus
}
#endif

/* CPU and GPU share the arithmetic of one activation and of one resampled pixel. */

MODEL_INLINE uint8_t model_activation(int32_t sum, int32_t multiplier) {
    int64_t scaled;
    if (sum < 0)
        return 0;
    scaled = ((int64_t)sum * multiplier + ((int64_t)1 << (MODEL_SHIFT - 1))) >> MODEL_SHIFT;
    return scaled > 255 ? 255 : (uint8_t)scaled;
}

/* The mean of the pixels that the resampled one covers, in part or whole, rounded to the nearest. Images of
 * up to 2^24 pixels fit the sums. */
MODEL_INLINE uint8_t model_resample(const uint8_t *pixels, uint32_t width, uint32_t height, uint32_t x,
                                    uint32_t y) {
    uint32_t x_begin = x * width / MODEL_SIDE, x_end = ((x + 1) * width + MODEL_SIDE - 1) / MODEL_SIDE;
    uint32_t y_begin = y * height / MODEL_SIDE, y_end = ((y + 1) * height + MODEL_SIDE - 1) / MODEL_SIDE;
    uint32_t count = (x_end - x_begin) * (y_end - y_begin), sum = 0, i, j;
    for (j = y_begin; j < y_end; j++)
        for (i = x_begin; i < x_end; i++)
            sum += pixels[(size_t)j * width + i];
    return (uint8_t)((sum + count / 2) / count);
}

#endif
