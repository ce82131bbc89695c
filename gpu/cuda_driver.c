/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda_driver.h"

#include <cuda_runtime_api.h>

#include "gpu/gpu.h"

/* All entry points are those of CUDA 12.0, whatever toolkit builds this and whatever driver runs it. */
#define DRIVER_VERSION 12000

_Static_assert((int)CU_MEM_ACCESS_FLAGS_PROT_READ == (int)GPU_ACCESS_READ &&
                   (int)CU_MEM_ACCESS_FLAGS_PROT_READWRITE == (int)GPU_ACCESS_READ_WRITE,
               "gpu.h's accesses are the driver's");
_Static_assert(sizeof(CUipcMemHandle) == GPU_IPC_HANDLE_BYTES, "gpu.h's handle is the driver's");
_Static_assert(sizeof(CUuuid) == GPU_UUID_BYTES, "gpu.h's UUID is the driver's");
_Static_assert((int)CUDA_ERROR_OUT_OF_MEMORY == (int)GPU_ERROR_MEMORY_ALLOCATION &&
                   (int)CUDA_ERROR_INVALID_CONTEXT == (int)GPU_ERROR_INVALID_CONTEXT &&
                   (int)CUDA_ERROR_MAP_FAILED == (int)GPU_ERROR_MAP_BUFFER_OBJECT_FAILED &&
                   (int)CUDA_ERROR_INVALID_HANDLE == (int)GPU_ERROR_INVALID_RESOURCE_HANDLE &&
                   (int)CUDA_ERROR_NOT_READY == (int)GPU_ERROR_NOT_READY &&
                   (int)CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED == (int)GPU_ERROR_HOST_MEMORY_NOT_REGISTERED,
               "the driver's errors have the runtime's numbers");

/* Looks one of the driver's functions up. The runtime opens libcuda.so.1 itself, and says so where there is
 * none. */
static int driver_symbol(const char *symbol, void **ret_function) {
    enum cudaDriverEntryPointQueryResult status;
    void *function = NULL;
    cudaError_t error;

#if CUDART_VERSION >= 12050
    error =
        cudaGetDriverEntryPointByVersion(symbol, &function, DRIVER_VERSION, cudaEnableLegacyStream, &status);
#else
    error = cudaGetDriverEntryPoint(symbol, &function, cudaEnableLegacyStream, &status);
#endif
    if (error != cudaSuccess) {
        cudaGetLastError(); /* not the program's */
        return (int)error;
    }
    if (status != cudaDriverEntryPointSuccess || function == NULL)
        return GPU_ERROR_INSUFFICIENT_DRIVER;
    *ret_function = function;
    return 0;
}

int cuda_driver_load(struct driver *driver) {
    int r = 0;

#define DRIVER_LOAD(member, symbol, type)                                                                    \
    if (r == 0)                                                                                              \
        r = driver_symbol(symbol, (void **)&driver->member);
    DRIVER_CALLS(DRIVER_LOAD)
    return r;
}
