/* SPDX-License-Identifier: Apache-2.0 */
/* The fake driver's functions that gpupool does not serve. Each succeeds and gives what is no pointer. */
#include "tests/preload/fake_unserved.h"

#include "tests/preload/fake_libcuda.h"

#define NOTHING 0x1000u

int cuMemAllocManaged(uint64_t *memory, size_t size_bytes, unsigned flags) {
    (void)flags;
    if (size_bytes == 0)
        return CUDA_INVALID_VALUE;
    *memory = NOTHING;
    return 0;
}

int cuMemCreate(uint64_t *handle, size_t size_bytes, const struct cuda_allocation *allocation,
                uint64_t flags) {
    (void)flags;
    return allocation == NULL ? CUDA_INVALID_VALUE : cuMemAllocManaged(handle, size_bytes, 0);
}

static int array_create(void **ret_array) {
    static int one;
    *ret_array = &one;
    return 0;
}

int cuArrayCreate_v2(void **ret_array, const struct cuda_array *array) {
    return array == NULL ? CUDA_INVALID_VALUE : array_create(ret_array);
}

int cuArray3DCreate_v2(void **ret_array, const struct cuda_array_3d *array) {
    return array == NULL ? CUDA_INVALID_VALUE : array_create(ret_array);
}

int cuMipmappedArrayCreate(void **ret_array, const struct cuda_array_3d *array, unsigned levels) {
    return array == NULL || levels == 0 ? CUDA_INVALID_VALUE : array_create(ret_array);
}

int cuMemHostRegister_v2(void *memory, size_t size_bytes, unsigned flags) {
    (void)flags;
    return memory == NULL || size_bytes == 0 ? CUDA_INVALID_VALUE : 0;
}

void *fake_unserved_find(const char *name, int version) {
    static const struct fake_function all[] = {
        {"cuMemAllocManaged", 6000, 0, (void *)cuMemAllocManaged},
        {"cuMemPoolCreate", 11020, 0, (void *)cuMemPoolCreate},
        {"cuMemCreate", 10020, 0, (void *)cuMemCreate},
        {"cuArrayCreate", 3020, 0, (void *)cuArrayCreate_v2},
        {"cuArray3DCreate", 3020, 0, (void *)cuArray3DCreate_v2},
        {"cuMipmappedArrayCreate", 5000, 0, (void *)cuMipmappedArrayCreate},
        {"cuMemHostRegister", 6050, 0, (void *)cuMemHostRegister_v2},
    };

    return fake_find(all, sizeof all / sizeof *all, name, version, 0);
}
