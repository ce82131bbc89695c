/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_UNSERVED_H
#define CLIENT_PRELOAD_UNSERVED_H
/*
 * The driver's functions that give memory which the pools do not serve: they count for the report and call
 * the real function. The audit library binds references to them only if a report is asked for (report.h), so
 * that without one such a call costs nothing. With one it costs a few additions.
 *
 * Objects whose driver is the real one (the shared runtime, libraries for communication) are bound to these,
 * too, and to none of the functions that lend: what they ask of the driver is CUDA's own memory.
 *
 * A function that lends is preferred to one of these of the same name.
 */
#include <stddef.h>
#include <stdint.h>

/* The prefix by which the audit library finds them. */
#define COUNTED_PREFIX "gpupool_counted_"

/* CUmemAllocationProp: the type and the types of handles come first. */
#define CUDA_LOCATION_DEVICE 1
struct cuda_allocation {
    int type, handle_types, location_type, location_id;
};

/* The driver's descriptors of arrays. */
struct cuda_array {
    size_t width, height;
    int format;
    unsigned channels;
};
struct cuda_array_3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

#define CUDA_HOST_WRITE_COMBINED 4u

/* name, parameters */
#define LIBCUDA_COUNTED(X)                                                                                   \
    X(cuMemAllocManaged, (uint64_t *, size_t, unsigned))                                                     \
    X(cuMemPoolCreate, (void **, const void *))                                                              \
    X(cuMemCreate, (uint64_t *, size_t, const struct cuda_allocation *, uint64_t))                           \
    X(cuArrayCreate_v2, (void **, const struct cuda_array *))                                                \
    X(cuArray3DCreate_v2, (void **, const struct cuda_array_3d *))                                           \
    X(cuMipmappedArrayCreate, (void **, const struct cuda_array_3d *, unsigned))                             \
    X(cuMemHostAlloc, (void **, size_t, unsigned))                                                           \
    X(cuMemHostRegister_v2, (void *, size_t, unsigned))                                                      \
    X(cuGetProcAddress, (const char *, void **, int, uint64_t))                                              \
    X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))

/* After the driver's cuGetProcAddress() found a function: replaces it by the one that counts, if a report is
 * asked for and there is one. */
void unserved_answer(const char *name, void **function, int version, uint64_t flags);

#endif
