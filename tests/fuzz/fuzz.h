/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H
/*
 * Helpers of all fuzz targets. A target is one function of libFuzzer's, LLVMFuzzerTestOneInput(): it plays
 * one input and aborts when something does not hold. It depends on nothing but the input (no clock, no
 * thread, no chance), so that an input which fails does so again. Built with clang's fuzzer it makes inputs
 * of its own; in every other build replay.c gives it the files of tests/fuzz/corpus.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* For what has to hold whatever the input is. Stays in builds without assertions. */
#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                   \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* An input that is read from its beginning to its end. Behind the end everything is 0. */
struct input {
    const uint8_t *data;
    size_t left;
};

static inline uint64_t input_number(struct input *input, unsigned bytes) {
    uint64_t number = 0;
    for (unsigned i = 0; i < bytes && input->left > 0; i++, input->left--)
        number |= (uint64_t)*input->data++ << 8 * i;
    return number;
}

/* One byte, as a number below bound (at most 256). */
static inline unsigned input_below(struct input *input, unsigned bound) {
    return (unsigned)input_number(input, 1) % bound;
}

/* The next bytes, where they lie; *size becomes what there is of them. */
static inline const uint8_t *input_bytes(struct input *input, size_t *size) {
    const uint8_t *bytes = input->data;
    if (*size > input->left)
        *size = input->left;
    input->data += *size;
    input->left -= *size;
    return bytes;
}

/* Any number, those at the edges of what is allowed more often than others. */
uint64_t input_edgy(struct input *input);

#endif
