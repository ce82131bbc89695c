/* SPDX-License-Identifier: Apache-2.0 */
/* The model's file, and the CPU path: plain loops, to be read beside kernels.cu. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "model.h"

static int complain(const char *path, const char *what) {
    fprintf(stderr, "classifier: %s: %s\n", path, what);
    return -1;
}

static bool biases_are_sane(const int32_t *biases, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (biases[i] < -MODEL_BIAS_MAX || biases[i] > MODEL_BIAS_MAX)
            return false;
    return true;
}

static bool multipliers_are_sane(const int32_t *multipliers, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (multipliers[i] < 0)
            return false;
    return true;
}

static bool model_is_sane(const struct model *model) {
    return biases_are_sane(model->bias_1, MODEL_CHANNELS_1) &&
           biases_are_sane(model->bias_2, MODEL_CHANNELS_2) &&
           biases_are_sane(model->bias_3, MODEL_CHANNELS_3) &&
           biases_are_sane(model->bias_scores, MODEL_CLASSES) &&
           multipliers_are_sane(model->multiplier_1, MODEL_CHANNELS_1) &&
           multipliers_are_sane(model->multiplier_2, MODEL_CHANNELS_2) &&
           multipliers_are_sane(model->multiplier_3, MODEL_CHANNELS_3) && isfinite(model->score_unit);
}

int model_read(const char *path, struct model *ret_model) {
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return complain(path, strerror(errno));
    size_t n = fread(ret_model, 1, sizeof *ret_model, file);
    bool failed = ferror(file), longer = n == sizeof *ret_model && fgetc(file) != EOF;
    fclose(file);
    if (failed)
        return complain(path, "cannot be read");
    if (n != sizeof *ret_model || longer ||
        memcmp(ret_model->magic, MODEL_MAGIC, sizeof ret_model->magic) != 0)
        return complain(path, "is no model of this program");
    if (!model_is_sane(ret_model))
        return complain(path, "the model's numbers are out of their range");
    return 0;
}

/*
 * One layer: a convolution of 3 × 3 (beyond the edges lies 0), ReLU, and the maximum of each 2 × 2. in and
 * out are [channel][y][x]; side is that of the input, out has half of it.
 */
static void convolve(const uint8_t *in, unsigned in_channels, unsigned side, const int8_t *weights,
                     const int32_t *biases, const int32_t *multipliers, uint8_t *out, unsigned out_channels) {
    unsigned half = side / 2;

    memset(out, 0, (size_t)out_channels * half * half);
    for (unsigned channel = 0; channel < out_channels; channel++)
        for (unsigned y = 0; y < side; y++)
            for (unsigned x = 0; x < side; x++) {
                int32_t sum = biases[channel];
                for (unsigned from = 0; from < in_channels; from++)
                    for (unsigned k = 0; k < MODEL_KERNEL; k++) {
                        unsigned in_y = y + k / 3 - 1,
                                 in_x = x + k % 3 - 1; /* at an edge: wraps, and is ≥ side */
                        if (in_y < side && in_x < side)
                            sum += weights[(channel * in_channels + from) * MODEL_KERNEL + k] *
                                   in[(from * side + in_y) * side + in_x];
                    }
                uint8_t activation = model_activation(sum, multipliers[channel]);
                uint8_t *place = &out[(channel * half + y / 2) * half + x / 2];
                if (activation > *place)
                    *place = activation;
            }
}

void model_run(const struct model *model, const uint8_t *pixels, uint32_t width, uint32_t height,
               int32_t scores[MODEL_CLASSES]) {
    uint8_t image[MODEL_SIDE * MODEL_SIDE];
    uint8_t layer_1[MODEL_CHANNELS_1 * MODEL_SIDE_1 * MODEL_SIDE_1];
    uint8_t layer_2[MODEL_CHANNELS_2 * MODEL_SIDE_2 * MODEL_SIDE_2];
    uint8_t layer_3[MODEL_FEATURES];

    for (unsigned i = 0; i < MODEL_SIDE * MODEL_SIDE; i++)
        image[i] = model_resample(pixels, width, height, i % MODEL_SIDE, i / MODEL_SIDE);
    convolve(image, 1, MODEL_SIDE, &model->weights_1[0][0][0], model->bias_1, model->multiplier_1, layer_1,
             MODEL_CHANNELS_1);
    convolve(layer_1, MODEL_CHANNELS_1, MODEL_SIDE_1, &model->weights_2[0][0][0], model->bias_2,
             model->multiplier_2, layer_2, MODEL_CHANNELS_2);
    convolve(layer_2, MODEL_CHANNELS_2, MODEL_SIDE_2, &model->weights_3[0][0][0], model->bias_3,
             model->multiplier_3, layer_3, MODEL_CHANNELS_3);
    for (unsigned i = 0; i < MODEL_CLASSES; i++) {
        scores[i] = model->bias_scores[i];
        for (unsigned j = 0; j < MODEL_FEATURES; j++)
            scores[i] += model->weights_scores[i][j] * layer_3[j];
    }
}

unsigned model_class(const int32_t scores[MODEL_CLASSES]) {
    unsigned best = 0;
    for (unsigned i = 1; i < MODEL_CLASSES; i++)
        if (scores[i] > scores[best])
            best = i;
    return best;
}

double model_probability(const struct model *model, const int32_t scores[MODEL_CLASSES],
                         unsigned class_index) {
    double sum = 0;
    for (unsigned i = 0; i < MODEL_CLASSES; i++)
        sum += exp(((double)scores[i] - scores[class_index]) * model->score_unit);
    return 1 / sum;
}
