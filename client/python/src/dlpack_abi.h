/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PYTHON_DLPACK_ABI_H
#define CLIENT_PYTHON_DLPACK_ABI_H
/* The structures and numbers of DLPack 1.0 (https://dmlc.github.io/dlpack/latest/c_api.html) that are used
 * here. */
#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_MINOR 0

enum dlpack_device_type {
    DLPACK_CPU = 1,
    DLPACK_CUDA = 2
};

enum dlpack_type_code {
    DLPACK_INT = 0,
    DLPACK_UINT = 1,
    DLPACK_FLOAT = 2,
    DLPACK_BFLOAT = 4,
    DLPACK_COMPLEX = 5,
    DLPACK_BOOL = 6,
};

#define DLPACK_FLAG_READ_ONLY UINT64_C(1)
#define DLPACK_FLAG_IS_COPIED UINT64_C(2)

/* DLTensor */
struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* in elements */
    uint64_t byte_offset;
};

/* DLManagedTensor */
struct dlpack_managed {
    struct dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_managed *self);
};

/* DLManagedTensorVersioned */
struct dlpack_versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct dlpack_versioned *self);
    uint64_t flags;
    struct dlpack_tensor tensor;
};

#endif
