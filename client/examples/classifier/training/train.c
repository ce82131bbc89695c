/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_digits MODEL [--images N] [--epochs N]
 *
 * Trains the network of model.h on drawn digits, in real numbers, turns it into integers, measures it on
 * digits that it has not seen, and writes the model's file. Takes minutes on one processor; the same numbers
 * lead to the same model with the same compiler.
 *
 * The pictures are of seeds from TRAINING_SEED on; those of make_digits have other seeds. Optimised is by
 * Adam, the loss is cross entropy.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../model.h"
#include "digits.h"

#define TRAINING_SEED UINT64_C(1000000000)
#define TEST_SEED     UINT64_C(2000000000)
#define TEST_IMAGES   2000u
#define CALIBRATION   1000u /* images by which the ranges of the activations are found */
#define BATCH         32u
#define LEARNING_RATE 0.002
#define CLIPPED       0.0005 /* this part of a layer's activations may be beyond the largest integer */
#define HISTOGRAM     4096u
#define PADDED(side)  ((side) + 2)

struct sample {
    unsigned digit;
    uint8_t pixels[MODEL_SIDE * MODEL_SIDE];
};

/* All that is learned, as one array of numbers for the optimiser and as the layers' for everybody else. */
struct parameters {
    float weights_1[MODEL_CHANNELS_1][1][MODEL_KERNEL], bias_1[MODEL_CHANNELS_1];
    float weights_2[MODEL_CHANNELS_2][MODEL_CHANNELS_1][MODEL_KERNEL], bias_2[MODEL_CHANNELS_2];
    float weights_3[MODEL_CHANNELS_3][MODEL_CHANNELS_2][MODEL_KERNEL], bias_3[MODEL_CHANNELS_3];
    float weights_scores[MODEL_CLASSES][MODEL_FEATURES], bias_scores[MODEL_CLASSES];
};
#define N_PARAMETERS (sizeof(struct parameters) / sizeof(float))

/* The values that one image leaves in the layers. Inputs of convolutions have a border of zeros. */
struct activations {
    float in_1[1][PADDED(MODEL_SIDE)][PADDED(MODEL_SIDE)];
    float out_1[MODEL_CHANNELS_1][MODEL_SIDE][MODEL_SIDE];
    float in_2[MODEL_CHANNELS_1][PADDED(MODEL_SIDE_1)][PADDED(MODEL_SIDE_1)];
    float out_2[MODEL_CHANNELS_2][MODEL_SIDE_1][MODEL_SIDE_1];
    float in_3[MODEL_CHANNELS_2][PADDED(MODEL_SIDE_2)][PADDED(MODEL_SIDE_2)];
    float out_3[MODEL_CHANNELS_3][MODEL_SIDE_2][MODEL_SIDE_2];
    float in_4[MODEL_CHANNELS_3][PADDED(MODEL_SIDE_3)][PADDED(MODEL_SIDE_3)];
    float scores[MODEL_CLASSES];
};

/* --- layers: pointers to [channel][y][x], input and its gradient with a border --- */

struct layer {
    unsigned in_channels, out_channels, side;
    const float *in, *weights, *biases;
    float *out, *next; /* before and after the maximum of 2 × 2 */
};

static struct layer layers_of(const struct parameters *p, struct activations *a, unsigned i) {
    switch (i) {
    case 0:
        return (struct layer){
            1,         MODEL_CHANNELS_1,   MODEL_SIDE,       &a->in_1[0][0][0], &p->weights_1[0][0][0],
            p->bias_1, &a->out_1[0][0][0], &a->in_2[0][0][0]};
    case 1:
        return (struct layer){MODEL_CHANNELS_1,   MODEL_CHANNELS_2,       MODEL_SIDE_1,
                              &a->in_2[0][0][0],  &p->weights_2[0][0][0], p->bias_2,
                              &a->out_2[0][0][0], &a->in_3[0][0][0]};
    default:
        return (struct layer){MODEL_CHANNELS_2,   MODEL_CHANNELS_3,       MODEL_SIDE_2,
                              &a->in_3[0][0][0],  &p->weights_3[0][0][0], p->bias_3,
                              &a->out_3[0][0][0], &a->in_4[0][0][0]};
    }
}

static const float *in_row(const float *plane, unsigned side, unsigned channel, unsigned y) {
    return plane + ((size_t)channel * PADDED(side) + y) * PADDED(side);
}

static void layer_forward(const struct layer *l) {
    unsigned side = l->side, half = side / 2;

    for (unsigned c = 0; c < l->out_channels; c++) {
        float *out = l->out + (size_t)c * side * side;
        for (unsigned i = 0; i < side * side; i++)
            out[i] = l->biases[c];
        for (unsigned from = 0; from < l->in_channels; from++)
            for (unsigned k = 0; k < MODEL_KERNEL; k++) {
                float weight = l->weights[(c * l->in_channels + from) * MODEL_KERNEL + k];
                for (unsigned y = 0; y < side; y++) {
                    const float *in = in_row(l->in, side, from, y + k / 3) + k % 3;
                    for (unsigned x = 0; x < side; x++)
                        out[y * side + x] += weight * in[x];
                }
            }
        for (unsigned y = 0; y < half; y++)
            for (unsigned x = 0; x < half; x++) {
                const float *at = out + 2 * y * side + 2 * x;
                float largest = fmaxf(fmaxf(at[0], at[1]), fmaxf(at[side], at[side + 1]));
                l->next[((size_t)c * PADDED(half) + y + 1) * PADDED(half) + x + 1] = fmaxf(largest, 0);
            }
    }
}

/* next: the gradient of l->next. Adds to the gradients of weights and biases; in (or NULL) gets the input's.
 */
static void layer_backward(const struct layer *l, const float *next, float *weights, float *biases,
                           float *in) {
    unsigned side = l->side, half = side / 2;
    static float out[MODEL_SIDE * MODEL_SIDE];

    if (in != NULL)
        memset(in, 0, sizeof *in * l->in_channels * PADDED(side) * PADDED(side));
    for (unsigned c = 0; c < l->out_channels; c++) {
        memset(out, 0, sizeof *out * side * side);
        for (unsigned y = 0; y < half; y++)
            for (unsigned x = 0; x < half; x++) {
                size_t place = ((size_t)c * PADDED(half) + y + 1) * PADDED(half) + x + 1;
                if (l->next[place] <= 0) /* ReLU let nothing through */
                    continue;
                const float *at = l->out + ((size_t)c * side + 2 * y) * side + 2 * x;
                unsigned offsets[4] = {0, 1, side, side + 1}, best = 0;
                for (unsigned k = 1; k < 4; k++)
                    if (at[offsets[k]] > at[offsets[best]])
                        best = k;
                out[2 * y * side + 2 * x + offsets[best]] = next[place];
                biases[c] += next[place];
            }
        for (unsigned from = 0; from < l->in_channels; from++)
            for (unsigned k = 0; k < MODEL_KERNEL; k++) {
                size_t number = (c * l->in_channels + from) * MODEL_KERNEL + k;
                float sum = 0, weight = l->weights[number];
                for (unsigned y = 0; y < side; y++) {
                    size_t row = (size_t)(in_row(l->in, side, from, y + k / 3) - l->in) + k % 3;
                    const float *seen = l->in + row;
                    for (unsigned x = 0; x < side; x++)
                        sum += out[y * side + x] * seen[x];
                    if (in != NULL)
                        for (unsigned x = 0; x < side; x++)
                            in[row + x] += weight * out[y * side + x];
                }
                weights[number] += sum;
            }
    }
}

static float feature(const struct activations *a, unsigned i) {
    unsigned plane = MODEL_SIDE_3 * MODEL_SIDE_3;
    return a->in_4[i / plane][i % plane / MODEL_SIDE_3 + 1][i % MODEL_SIDE_3 + 1];
}

static void forward(const struct parameters *p, const struct sample *sample, struct activations *a) {
    for (unsigned i = 0; i < MODEL_SIDE * MODEL_SIDE; i++)
        a->in_1[0][i / MODEL_SIDE + 1][i % MODEL_SIDE + 1] = sample->pixels[i] / 255.0f;
    for (unsigned i = 0; i < 3; i++) {
        struct layer layer = layers_of(p, a, i);
        layer_forward(&layer);
    }
    for (unsigned c = 0; c < MODEL_CLASSES; c++) {
        a->scores[c] = p->bias_scores[c];
        for (unsigned i = 0; i < MODEL_FEATURES; i++)
            a->scores[c] += p->weights_scores[c][i] * feature(a, i);
    }
}

/* Adds the gradient of the sample's loss. Returns the loss. */
static double backward(const struct parameters *p, const struct sample *sample, struct activations *a,
                       struct parameters *gradient) {
    static float in_4[MODEL_CHANNELS_3][PADDED(MODEL_SIDE_3)][PADDED(MODEL_SIDE_3)];
    static float in_3[sizeof a->in_3 / sizeof(float)], in_2[sizeof a->in_2 / sizeof(float)];
    float largest = a->scores[0], sum = 0, part[MODEL_CLASSES];

    for (unsigned c = 1; c < MODEL_CLASSES; c++)
        largest = fmaxf(largest, a->scores[c]);
    for (unsigned c = 0; c < MODEL_CLASSES; c++)
        sum += part[c] = expf(a->scores[c] - largest);
    memset(in_4, 0, sizeof in_4);
    for (unsigned c = 0; c < MODEL_CLASSES; c++) {
        float wrong = part[c] / sum - (c == sample->digit ? 1.0f : 0.0f);
        gradient->bias_scores[c] += wrong;
        for (unsigned i = 0; i < MODEL_FEATURES; i++) {
            unsigned plane = MODEL_SIDE_3 * MODEL_SIDE_3;
            gradient->weights_scores[c][i] += wrong * feature(a, i);
            in_4[i / plane][i % plane / MODEL_SIDE_3 + 1][i % MODEL_SIDE_3 + 1] +=
                wrong * p->weights_scores[c][i];
        }
    }
    struct layer layer = layers_of(p, a, 2);
    layer_backward(&layer, &in_4[0][0][0], &gradient->weights_3[0][0][0], gradient->bias_3, in_3);
    layer = layers_of(p, a, 1);
    layer_backward(&layer, in_3, &gradient->weights_2[0][0][0], gradient->bias_2, in_2);
    layer = layers_of(p, a, 0);
    layer_backward(&layer, in_2, &gradient->weights_1[0][0][0], gradient->bias_1, NULL);
    return log(sum) + largest - a->scores[sample->digit];
}

/* --- learning --- */

static void initialise(struct parameters *p, struct digit_random *random) {
    struct {
        float *weights;
        size_t count;
        unsigned inputs;
    } all[] = {{&p->weights_1[0][0][0], sizeof p->weights_1 / sizeof(float), MODEL_KERNEL},
               {&p->weights_2[0][0][0], sizeof p->weights_2 / sizeof(float), MODEL_CHANNELS_1 * MODEL_KERNEL},
               {&p->weights_3[0][0][0], sizeof p->weights_3 / sizeof(float), MODEL_CHANNELS_2 * MODEL_KERNEL},
               {&p->weights_scores[0][0], sizeof p->weights_scores / sizeof(float), MODEL_FEATURES}};

    memset(p, 0, sizeof *p);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
        double bound = sqrt(6.0 / all[i].inputs); /* He's initialisation */
        for (size_t k = 0; k < all[i].count; k++)
            all[i].weights[k] = (float)digit_random_between(random, -bound, bound);
    }
}

static void adam(struct parameters *p, const struct parameters *gradient, double rate) {
    static float mean[N_PARAMETERS], square[N_PARAMETERS];
    static double decay_mean = 1, decay_square = 1;
    const float *g = (const float *)gradient;
    float *values = (float *)p;

    decay_mean *= 0.9;
    decay_square *= 0.999;
    for (size_t i = 0; i < N_PARAMETERS; i++) {
        float slope = g[i] / BATCH;
        mean[i] = 0.9f * mean[i] + 0.1f * slope;
        square[i] = 0.999f * square[i] + 0.001f * slope * slope;
        values[i] -=
            (float)(rate * (mean[i] / (1 - decay_mean)) / (sqrt(square[i] / (1 - decay_square)) + 1e-8));
    }
}

static void draw_sample(uint64_t seed, struct sample *ret_sample) {
    static struct digit_picture picture;
    struct digit_random random;

    digit_random_seed(&random, seed);
    digit_draw(&random, (unsigned)(seed % MODEL_CLASSES), &picture);
    ret_sample->digit = picture.digit;
    for (unsigned i = 0; i < MODEL_SIDE * MODEL_SIDE; i++)
        ret_sample->pixels[i] =
            model_resample(picture.pixels, picture.width, picture.height, i % MODEL_SIDE, i / MODEL_SIDE);
}

/* Once through all samples, in a random order. */
static void epoch(struct parameters *p, struct sample *samples, unsigned count, double rate,
                  struct digit_random *random) {
    static struct activations activations;
    static struct parameters gradient;
    double loss = 0;
    unsigned right = 0;

    for (unsigned i = count - 1; i > 0; i--) {
        unsigned k = digit_random_below(random, i + 1);
        struct sample other = samples[i];
        samples[i] = samples[k];
        samples[k] = other;
    }
    for (unsigned i = 0; i + BATCH <= count; i += BATCH) {
        memset(&gradient, 0, sizeof gradient);
        for (unsigned k = i; k < i + BATCH; k++) {
            forward(p, &samples[k], &activations);
            loss += backward(p, &samples[k], &activations, &gradient);
            unsigned best = 0;
            for (unsigned c = 1; c < MODEL_CLASSES; c++)
                if (activations.scores[c] > activations.scores[best])
                    best = c;
            right += best == samples[k].digit;
        }
        adam(p, &gradient, rate);
    }
    printf("rate %.5f: loss %.4f, %.2f %% right\n", rate, loss / count, 100.0 * right / count);
    fflush(stdout);
}

/* --- from real numbers to integers --- */

/* The value that all but CLIPPED of a layer's activations do not exceed: it becomes 255. */
static double range_of(const struct parameters *p, const struct sample *samples, unsigned layer) {
    static struct activations a;
    static unsigned histogram[HISTOGRAM];
    double largest = 0;
    unsigned total = 0, beyond = 0, bin = HISTOGRAM;

    for (unsigned pass = 0; pass < 2; pass++) { /* first the largest, then how they are spread below it */
        memset(histogram, 0, sizeof histogram);
        for (unsigned i = 0; i < CALIBRATION; i++) {
            forward(p, &samples[i], &a);
            struct layer l = layers_of(p, &a, layer);
            unsigned plane = PADDED(l.side / 2) * PADDED(l.side / 2);
            for (unsigned k = 0; k < l.out_channels * plane; k++) {
                if (pass == 0)
                    largest = fmax(largest, l.next[k]);
                else if (l.next[k] > 0)
                    histogram[(unsigned)(l.next[k] / largest * (HISTOGRAM - 1))]++, total++;
            }
        }
    }
    while (bin > 1 && beyond + histogram[bin - 1] <= CLIPPED * total)
        beyond += histogram[--bin];
    return largest * bin / HISTOGRAM;
}

static double largest_of(const float *weights, size_t count) {
    double largest = 1e-12;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(weights[i]));
    return largest;
}

/* A channel's weights become multiples of a unit of their own. The sum's unit is the product of this unit and
 * the inputs' unit. */
static double quantise(const float *weights, size_t count, int8_t *ret_weights) {
    double unit = largest_of(weights, count) / 127;
    for (size_t i = 0; i < count; i++)
        ret_weights[i] = (int8_t)lrint(weights[i] / unit);
    return unit;
}

static void quantise_layer(const struct layer *l, double in_unit, double out_unit, int8_t *weights,
                           int32_t *biases, int32_t *multipliers) {
    size_t count = l->in_channels * MODEL_KERNEL;
    for (unsigned c = 0; c < l->out_channels; c++) {
        double sum_unit = in_unit * quantise(l->weights + c * count, count, weights + c * count);
        double bias = rint(l->biases[c] / sum_unit),
               multiplier = rint(sum_unit / out_unit * (1 << MODEL_SHIFT));
        if (fabs(bias) > MODEL_BIAS_MAX ||
            multiplier > INT32_MAX) { /* a channel without weights: it says nothing */
            memset(weights + c * count, 0, count);
            bias = multiplier = 0;
        }
        biases[c] = (int32_t)bias;
        multipliers[c] = (int32_t)multiplier;
    }
}

static void quantise_model(const struct parameters *p, const struct sample *samples,
                           struct model *ret_model) {
    static struct activations a;
    double units[4] = {1 / 255.0};

    memset(ret_model, 0, sizeof *ret_model);
    memcpy(ret_model->magic, MODEL_MAGIC, sizeof ret_model->magic);
    for (unsigned i = 0; i < 3; i++)
        units[i + 1] = range_of(p, samples, i) / 255;
    struct layer l = layers_of(p, &a, 0);
    quantise_layer(&l, units[0], units[1], &ret_model->weights_1[0][0][0], ret_model->bias_1,
                   ret_model->multiplier_1);
    l = layers_of(p, &a, 1);
    quantise_layer(&l, units[1], units[2], &ret_model->weights_2[0][0][0], ret_model->bias_2,
                   ret_model->multiplier_2);
    l = layers_of(p, &a, 2);
    quantise_layer(&l, units[2], units[3], &ret_model->weights_3[0][0][0], ret_model->bias_3,
                   ret_model->multiplier_3);
    /* One unit for all classes: their scores are compared. */
    double unit = units[3] * quantise(&p->weights_scores[0][0], MODEL_CLASSES * MODEL_FEATURES,
                                      &ret_model->weights_scores[0][0]);
    for (unsigned c = 0; c < MODEL_CLASSES; c++)
        ret_model->bias_scores[c] = (int32_t)lrint(p->bias_scores[c] / unit);
    ret_model->score_unit = (float)unit;
}

/* How many of the test's digits are recognised: by the real numbers, and by the model as it is written. */
static void measure(const struct parameters *p, const struct model *model) {
    static struct activations a;
    struct sample sample;
    unsigned real = 0, integer = 0, confused[MODEL_CLASSES][MODEL_CLASSES] = {{0}};

    for (unsigned i = 0; i < TEST_IMAGES; i++) {
        int32_t scores[MODEL_CLASSES];
        draw_sample(TEST_SEED + i, &sample);
        forward(p, &sample, &a);
        unsigned best = 0;
        for (unsigned c = 1; c < MODEL_CLASSES; c++)
            if (a.scores[c] > a.scores[best])
                best = c;
        real += best == sample.digit;
        model_run(model, sample.pixels, MODEL_SIDE, MODEL_SIDE, scores);
        integer += model_class(scores) == sample.digit;
        confused[sample.digit][model_class(scores)]++;
    }
    printf("of %u digits not seen before: %.2f %% right in real numbers, %.2f %% in integers\n", TEST_IMAGES,
           100.0 * real / TEST_IMAGES, 100.0 * integer / TEST_IMAGES);
    for (unsigned i = 0; i < MODEL_CLASSES; i++)
        for (unsigned k = 0; k < MODEL_CLASSES; k++)
            if (i != k && confused[i][k] > 0)
                printf("  %u taken for %u: %u times\n", i, k, confused[i][k]);
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"images", required_argument, NULL, 'i'},
                                            {"epochs", required_argument, NULL, 'e'},
                                            {NULL, 0, NULL, 0}};
    static struct parameters parameters;
    static struct model model;
    unsigned images = 30000, epochs = 12;
    struct digit_random random;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1)
        switch (option) {
        case 'i':
            images = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'e':
            epochs = (unsigned)strtoul(optarg, NULL, 10);
            break;
        default:
            return 2;
        }
    if (optind + 1 != argc || images < CALIBRATION || epochs == 0) {
        fprintf(stderr, "usage: train_digits MODEL [--images N, at least %u] [--epochs N]\n", CALIBRATION);
        return 2;
    }
    struct sample *samples = calloc(images, sizeof *samples);
    if (samples == NULL) {
        perror("train_digits");
        return 1;
    }
    for (unsigned i = 0; i < images; i++)
        draw_sample(TRAINING_SEED + i, &samples[i]);
    digit_random_seed(&random, TRAINING_SEED);
    initialise(&parameters, &random);
    for (unsigned i = 0; i < epochs; i++) /* the rate falls in half a cosine */
        epoch(&parameters, samples, images, LEARNING_RATE * (1 + cos(3.14159265358979 * i / epochs)) / 2,
              &random);
    quantise_model(&parameters, samples, &model);
    measure(&parameters, &model);
    free(samples);

    FILE *file = fopen(argv[optind], "wb");
    if (file == NULL || fwrite(&model, sizeof model, 1, file) != 1 || fclose(file) != 0) {
        perror(argv[optind]);
        return 1;
    }
    return 0;
}
