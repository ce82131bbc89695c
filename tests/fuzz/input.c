/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/limits.h"
#include "tests/fuzz/fuzz.h"

uint64_t input_edgy(struct input *input) {
    static const uint64_t edges[] = {0,
                                     1,
                                     511,
                                     512,
                                     513,
                                     UINT64_C(2) << 20,
                                     (UINT64_C(2) << 20) + 512,
                                     UINT64_C(4) << 20,
                                     INT32_MAX,
                                     (uint64_t)INT32_MAX + 1,
                                     UINT32_MAX,
                                     PROTO_SIZE_MAX - 512,
                                     PROTO_SIZE_MAX,
                                     PROTO_SIZE_MAX + 1,
                                     INT64_MAX,
                                     (uint64_t)INT64_MAX + 1,
                                     UINT64_MAX - 511,
                                     UINT64_MAX};

    switch (input_below(input, 4)) {
    case 0:
        return input_number(input, 1);
    case 1:
        return input_number(input, 2) * 512;
    case 2:
        return edges[input_below(input, sizeof edges / sizeof *edges)];
    default:
        return input_number(input, 8);
    }
}
