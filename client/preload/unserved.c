/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/unserved.h"

#include "client/preload/driver.h"
#include "client/preload/report.h"

/* The versions of CUDA since which a name asked of cuGetProcAddress() is the function of today. */
#define ARRAYS_V2       3020
#define REGISTER_V2     6050
#define PROC_ADDRESS_V2 12000

#define COUNTED(X)                                                                                           \
    LIBCUDA_UNSERVED(X)                                                                                      \
    X(cuGetProcAddress, (const char *, void **, int, uint64_t))                                              \
    X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))

#define DECLARE(name, parameters)                                                                            \
    __attribute__((visibility("default"))) int gpupool_counted_##name parameters;
COUNTED(DECLARE)

/* Calls the real function. Calls that succeeded count. */
#define COUNT(call, row, size_bytes, ...)                                                                    \
    DRIVER_OR_FAIL(call);                                                                                    \
    int r = driver_real.call(__VA_ARGS__);                                                                   \
    if (r == 0)                                                                                              \
        report_add(row, size_bytes);                                                                         \
    return r

int gpupool_counted_cuMemAllocManaged(uint64_t *memory, size_t size_bytes, unsigned flags) {
    COUNT(cuMemAllocManaged, REPORT_MANAGED, size_bytes, memory, size_bytes, flags);
}

int gpupool_counted_cuMemPoolCreate(void **pool, const void *properties) {
    COUNT(cuMemPoolCreate, REPORT_POOL_MADE, 0, pool, properties);
}

int gpupool_counted_cuMemCreate(uint64_t *handle, size_t size_bytes, const struct cuda_allocation *allocation,
                                uint64_t flags) {
    bool is_host = allocation != NULL && allocation->location_type != CUDA_LOCATION_DEVICE;
    COUNT(cuMemCreate, is_host ? REPORT_VMM_HOST : REPORT_VMM, size_bytes, handle, size_bytes, allocation,
          flags);
}

/* --- arrays --- */

/* CUarray_format. Formats of video and of compressed blocks count as one byte an element. */
static size_t element_bytes(int format) {
    switch (format) {
    case 0x02: /* unsigned, of 16 bits */
    case 0x09: /* signed */
    case 0x10: /* half */
        return 2;
    case 0x03: /* unsigned, of 32 bits */
    case 0x0a: /* signed */
    case 0x20: /* float */
        return 4;
    default:
        return 1;
    }
}

/* An array without a height or a depth has 0 of it. */
static uint64_t array_bytes(size_t width, size_t height, size_t depth, int format, unsigned channels) {
    return (uint64_t)width * (height > 0 ? height : 1) * (depth > 0 ? depth : 1) * channels *
           element_bytes(format);
}

static uint64_t levels_bytes(const struct cuda_array_3d *array, unsigned levels) {
    uint64_t bytes = 0;

    for (unsigned level = 0; level < levels && level < 32; level++)
        bytes += array_bytes(array->width >> level > 0 ? array->width >> level : 1, array->height >> level,
                             array->depth >> level, array->format, array->channels);
    return bytes;
}

int gpupool_counted_cuArrayCreate_v2(void **ret_array, const struct cuda_array *array) {
    COUNT(cuArrayCreate_v2, REPORT_ARRAY,
          array_bytes(array->width, array->height, 0, array->format, array->channels), ret_array, array);
}

int gpupool_counted_cuArray3DCreate_v2(void **ret_array, const struct cuda_array_3d *array) {
    COUNT(cuArray3DCreate_v2, REPORT_ARRAY, levels_bytes(array, 1), ret_array, array);
}

int gpupool_counted_cuMipmappedArrayCreate(void **ret_array, const struct cuda_array_3d *array,
                                           unsigned levels) {
    COUNT(cuMipmappedArrayCreate, REPORT_ARRAY, levels_bytes(array, levels), ret_array, array, levels);
}

/* --- host memory --- */

int gpupool_counted_cuMemHostRegister_v2(void *memory, size_t size_bytes, unsigned flags) {
    COUNT(cuMemHostRegister_v2, REPORT_REGISTERED, size_bytes, memory, size_bytes, flags);
}

/* --- finding --- */

static const struct driver_answer answers[] = {
    {"cuMemAllocManaged", 0, false, (void *)gpupool_counted_cuMemAllocManaged},
    {"cuMemPoolCreate", 0, false, (void *)gpupool_counted_cuMemPoolCreate},
    {"cuMemCreate", 0, false, (void *)gpupool_counted_cuMemCreate},
    {"cuArrayCreate", ARRAYS_V2, false, (void *)gpupool_counted_cuArrayCreate_v2},
    {"cuArray3DCreate", ARRAYS_V2, false, (void *)gpupool_counted_cuArray3DCreate_v2},
    {"cuMipmappedArrayCreate", 0, false, (void *)gpupool_counted_cuMipmappedArrayCreate},
    {"cuMemHostRegister", REGISTER_V2, false, (void *)gpupool_counted_cuMemHostRegister_v2},
    {"cuGetProcAddress", 0, false, (void *)gpupool_counted_cuGetProcAddress},
    {"cuGetProcAddress", PROC_ADDRESS_V2, false, (void *)gpupool_counted_cuGetProcAddress_v2},
};

void unserved_answer(const char *name, void **function, int version, uint64_t flags) {
    if (report_is_asked())
        driver_answer(answers, sizeof answers / sizeof *answers, name, function, version, flags);
}

int gpupool_counted_cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    DRIVER_OR_FAIL(cuGetProcAddress);
    int r = driver_real.cuGetProcAddress(name, function, version, flags);
    if (r == 0)
        unserved_answer(name, function, version, flags);
    return r;
}

int gpupool_counted_cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                                        int *status) {
    DRIVER_OR_FAIL(cuGetProcAddress_v2);
    int r = driver_real.cuGetProcAddress_v2(name, function, version, flags, status);
    if (r == 0)
        unserved_answer(name, function, version, flags);
    return r;
}
