/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PRELOAD_FAKE_UNSERVED_H
#define TESTS_PRELOAD_FAKE_UNSERVED_H
/* The part of the fake driver (fake_libcuda.h) that gpupool counts and does not serve. */
#include "client/preload/unserved.h"

int cuMemAllocManaged(uint64_t *memory, size_t size_bytes, unsigned flags);
int cuMemCreate(uint64_t *handle, size_t size_bytes, const struct cuda_allocation *allocation,
                uint64_t flags);
int cuArrayCreate_v2(void **ret_array, const struct cuda_array *array);
int cuArray3DCreate_v2(void **ret_array, const struct cuda_array_3d *array);
int cuMipmappedArrayCreate(void **ret_array, const struct cuda_array_3d *array, unsigned levels);
int cuMemHostRegister_v2(void *memory, size_t size_bytes, unsigned flags);

/* The function of a name, for cuGetProcAddress(); NULL: it is none of these. */
void *fake_unserved_find(const char *name, int version);

#endif
