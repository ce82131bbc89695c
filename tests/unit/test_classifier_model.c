/* SPDX-License-Identifier: Apache-2.0 */
/* The example `classifier`: its network on the CPU, with weights whose outcome can be told without it. */
#include <unistd.h>

#include "client/examples/classifier/model.h"
#include "unit.h"

#define ONE (1 << MODEL_SHIFT)

static uint8_t pixels[256 * 256];

static void images_of_one_grey_keep_it_at_any_size(void **state) {
    (void)state;
    for (uint32_t width = 1; width <= 100; width++)
        for (uint32_t height = 1; height <= 100; height += 9) {
            uint8_t grey = (uint8_t)(width * 7 + height);
            memset(pixels, grey, sizeof pixels);
            for (uint32_t i = 0; i < MODEL_SIDE * MODEL_SIDE; i++)
                assert_int_equal(model_resample(pixels, width, height, i % MODEL_SIDE, i / MODEL_SIDE), grey);
        }
}

static void resampled_pixels_are_the_mean_of_what_they_cover(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 64 * 96; i++)
        pixels[i] = (uint8_t)(i * 31 % 251);
    for (uint32_t x = 0; x < MODEL_SIDE; x++)
        for (uint32_t y = 0; y < MODEL_SIDE; y++) {
            unsigned sum = 0;
            for (uint32_t k = 0; k < 6; k++) /* 2 × 3 */
                sum += pixels[(3 * y + k / 2) * 64 + 2 * x + k % 2];
            assert_int_equal(model_resample(pixels, 64, 96, x, y), (sum + 3) / 6);
            assert_int_equal(model_resample(pixels, MODEL_SIDE, MODEL_SIDE, x, y),
                             pixels[y * MODEL_SIDE + x]);
        }
}

/* The last pixel of the largest image, which is also the widest: nothing runs over, and nothing beyond it is
 * read. */
static void the_largest_images_fit_the_sums(void **state) {
    (void)state;
    uint32_t all = UINT32_C(1) << 24;
    uint8_t *image = malloc(all);
    assert_non_null(image);
    memset(image, 255, all);
    assert_int_equal(model_resample(image, all, 1, MODEL_SIDE - 1, MODEL_SIDE - 1), 255);
    assert_int_equal(model_resample(image, 1, all, MODEL_SIDE - 1, MODEL_SIDE - 1), 255);
    assert_int_equal(model_resample(image, 4096, 4096, MODEL_SIDE - 1, MODEL_SIDE - 1), 255);
    free(image);
}

static void activations_are_rounded_and_bounded(void **state) {
    (void)state;
    assert_int_equal(model_activation(-5, ONE), 0);
    assert_int_equal(model_activation(200, ONE), 200);
    assert_int_equal(model_activation(256, ONE), 255);
    assert_int_equal(model_activation(INT32_MAX, INT32_MAX), 255);
    assert_int_equal(model_activation(3, ONE / 2), 2); /* 1.5 */
    assert_int_equal(model_activation(5, ONE / 4), 1); /* 1.25 */
}

/* Pixel (x, y) of the 32 × 32, moved by the tap: outside lies 0. */
static int moved(int x, int y, int tap) {
    x += tap % 3 - 1;
    y += tap / 3 - 1;
    return x < 0 || y < 0 || x >= (int)MODEL_SIDE || y >= (int)MODEL_SIDE ? 0
                                                                          : pixels[y * (int)MODEL_SIDE + x];
}

/* With one tap in the first layer and the middle ones after it, feature 0 of channel 0 is the largest of the
 * 8 × 8 pixels that it comes from, moved by the tap. */
static void each_tap_looks_where_it_should(void **state) {
    static struct model model;
    int32_t scores[MODEL_CLASSES];
    (void)state;

    srand(1);
    for (unsigned i = 0; i < MODEL_SIDE * MODEL_SIDE; i++)
        pixels[i] = (uint8_t)(rand() % 256);
    for (int tap = 0; tap < (int)MODEL_KERNEL; tap++)
        for (unsigned feature = 0; feature < MODEL_SIDE_3 * MODEL_SIDE_3; feature++) {
            memset(&model, 0, sizeof model);
            model.multiplier_1[5] = model.multiplier_2[7] = model.multiplier_3[20] = ONE;
            model.weights_1[5][0][tap] = 1;
            model.weights_2[7][5][4] = 1;
            model.weights_3[20][7][4] = 1;
            model.weights_scores[9][20 * MODEL_SIDE_3 * MODEL_SIDE_3 + feature] = -3;
            model.bias_scores[9] = 10;
            int largest = 0;
            for (int k = 0; k < 64; k++) {
                int value = moved((int)(feature % MODEL_SIDE_3) * 8 + k % 8,
                                  (int)(feature / MODEL_SIDE_3) * 8 + k / 8, tap);
                largest = value > largest ? value : largest;
            }
            model_run(&model, pixels, MODEL_SIDE, MODEL_SIDE, scores);
            assert_int_equal(scores[9], 10 - 3 * largest);
            assert_int_equal(scores[0], 0);
            assert_int_equal(model_class(scores), scores[9] > 0 ? 9 : 0);
        }
}

/* Read back as they were written; and nothing that could overflow is accepted. */
static void models_are_read_and_their_ranges_checked(void **state) {
    static struct model model, read;
    char path[] = "/tmp/gpupool-model-XXXXXX";
    int32_t bad[] = {MODEL_BIAS_MAX + 1, -MODEL_BIAS_MAX - 1, INT32_MIN};
    int fd = mkstemp(path);
    (void)state;

    assert_true(fd >= 0);
    memcpy(model.magic, MODEL_MAGIC, sizeof model.magic);
    model.bias_1[0] = -MODEL_BIAS_MAX;
    model.multiplier_3[3] = INT32_MAX;
    model.weights_scores[9][MODEL_FEATURES - 1] = -127;
    assert_int_equal(pwrite(fd, &model, sizeof model, 0), sizeof model);
    assert_int_equal(model_read(path, &read), 0);
    assert_memory_equal(&model, &read, sizeof model);
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct model wrong = model;
        wrong.bias_scores[9] = bad[i];
        assert_int_equal(pwrite(fd, &wrong, sizeof wrong, 0), sizeof wrong);
        assert_int_equal(model_read(path, &read), -1);
    }
    model.multiplier_2[15] = -1;
    assert_int_equal(pwrite(fd, &model, sizeof model, 0), sizeof model);
    assert_int_equal(model_read(path, &read), -1);
    close(fd);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_of_one_grey_keep_it_at_any_size),
        cmocka_unit_test(resampled_pixels_are_the_mean_of_what_they_cover),
        cmocka_unit_test(the_largest_images_fit_the_sums),
        cmocka_unit_test(activations_are_rounded_and_bounded),
        cmocka_unit_test(each_tap_looks_where_it_should),
        cmocka_unit_test(models_are_read_and_their_ranges_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
