/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_CUDA_DRIVER_H
#define GPU_CUDA_DRIVER_H
/*
 * The driver's own functions, which cuda.c fills the table of gpu.h with. They are looked up once, through
 * the statically linked runtime.
 */
#include <cuda.h>
#include <cudaTypedefs.h>

/* The driver's functions: member, symbol, type. */
#define DRIVER_CALLS(X)                                                                                      \
    X(init, "cuInit", PFN_cuInit_v2000)                                                                      \
    X(device_count, "cuDeviceGetCount", PFN_cuDeviceGetCount_v2000)                                          \
    X(device_get, "cuDeviceGet", PFN_cuDeviceGet_v2000)                                                      \
    X(device_name, "cuDeviceGetName", PFN_cuDeviceGetName_v2000)                                             \
    X(device_uuid, "cuDeviceGetUuid", PFN_cuDeviceGetUuid_v11040)                                            \
    X(device_total, "cuDeviceTotalMem", PFN_cuDeviceTotalMem_v3020)                                          \
    X(device_bus, "cuDeviceGetPCIBusId", PFN_cuDeviceGetPCIBusId_v4010)                                      \
    X(primary_retain, "cuDevicePrimaryCtxRetain", PFN_cuDevicePrimaryCtxRetain_v7000)                        \
    X(context_push, "cuCtxPushCurrent", PFN_cuCtxPushCurrent_v4000)                                          \
    X(context_pop, "cuCtxPopCurrent", PFN_cuCtxPopCurrent_v4000)                                             \
    X(context_current, "cuCtxGetCurrent", PFN_cuCtxGetCurrent_v4000)                                         \
    X(context_device, "cuCtxGetDevice", PFN_cuCtxGetDevice_v2000)                                            \
    X(context_synchronize, "cuCtxSynchronize", PFN_cuCtxSynchronize_v2000)                                   \
    X(memory_info, "cuMemGetInfo", PFN_cuMemGetInfo_v3020)                                                   \
    X(memory_allocate, "cuMemAlloc", PFN_cuMemAlloc_v3020)                                                   \
    X(memory_free, "cuMemFree", PFN_cuMemFree_v3020)                                                         \
    X(ipc_export, "cuIpcGetMemHandle", PFN_cuIpcGetMemHandle_v4010)                                          \
    X(ipc_open, "cuIpcOpenMemHandle", PFN_cuIpcOpenMemHandle_v11000)                                         \
    X(ipc_close, "cuIpcCloseMemHandle", PFN_cuIpcCloseMemHandle_v4010)                                       \
    X(device_attribute, "cuDeviceGetAttribute", PFN_cuDeviceGetAttribute_v2000)                              \
    X(vmm_granularity, "cuMemGetAllocationGranularity", PFN_cuMemGetAllocationGranularity_v10020)            \
    X(vmm_create, "cuMemCreate", PFN_cuMemCreate_v10020)                                                     \
    X(vmm_release, "cuMemRelease", PFN_cuMemRelease_v10020)                                                  \
    X(vmm_export, "cuMemExportToShareableHandle", PFN_cuMemExportToShareableHandle_v10020)                   \
    X(vmm_import, "cuMemImportFromShareableHandle", PFN_cuMemImportFromShareableHandle_v10020)               \
    X(address_reserve, "cuMemAddressReserve", PFN_cuMemAddressReserve_v10020)                                \
    X(address_free, "cuMemAddressFree", PFN_cuMemAddressFree_v10020)                                         \
    X(vmm_map, "cuMemMap", PFN_cuMemMap_v10020)                                                              \
    X(vmm_unmap, "cuMemUnmap", PFN_cuMemUnmap_v10020)                                                        \
    X(vmm_set_access, "cuMemSetAccess", PFN_cuMemSetAccess_v10020)                                           \
    X(host_register, "cuMemHostRegister", PFN_cuMemHostRegister_v6050)                                       \
    X(host_unregister, "cuMemHostUnregister", PFN_cuMemHostUnregister_v4000)                                 \
    X(host_device_pointer, "cuMemHostGetDevicePointer", PFN_cuMemHostGetDevicePointer_v3020)                 \
    X(pointer_attribute, "cuPointerGetAttribute", PFN_cuPointerGetAttribute_v4000)                           \
    X(stream_create, "cuStreamCreate", PFN_cuStreamCreate_v2000)                                             \
    X(stream_destroy, "cuStreamDestroy", PFN_cuStreamDestroy_v4000)                                          \
    X(stream_synchronize, "cuStreamSynchronize", PFN_cuStreamSynchronize_v2000)                              \
    X(stream_query, "cuStreamQuery", PFN_cuStreamQuery_v2000)                                                \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", PFN_cuThreadExchangeStreamCaptureMode_v10010)       \
    X(stream_is_capturing, "cuStreamIsCapturing", PFN_cuStreamIsCapturing_v10000)                            \
    X(stream_write64, "cuStreamWriteValue64", PFN_cuStreamWriteValue64_v11070)                               \
    X(stream_wait64, "cuStreamWaitValue64", PFN_cuStreamWaitValue64_v11070)                                  \
    X(memory_set, "cuMemsetD8Async", PFN_cuMemsetD8Async_v3020)                                              \
    X(memory_copy, "cuMemcpyAsync", PFN_cuMemcpyAsync_v4000)

#define DRIVER_MEMBER(member, symbol, type) type member;
struct driver {
    DRIVER_CALLS(DRIVER_MEMBER)
};

/* Looks all of them up. Returns 0 or a driver error. */
int cuda_driver_load(struct driver *driver);

#endif
