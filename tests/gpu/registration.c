/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether libraries that register memory with other devices (RDMA, NCCL, UCX) can register a client's
 * mapping. They ask the driver for the allocation behind an address, and for a DMA-BUF descriptor of a range.
 * Both are there for memory of a pool with export = vmm. For memory that was opened by a legacy IPC handle
 * both fail with CUDA_ERROR_INVALID_VALUE. The program tries a pool of either kind, each of a daemon of its
 * own.
 *
 *     registration     exit status 0: it is so; 1: it is not; 77: no GPU
 *
 * The daemon is $GPUPOOL_DAEMON.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/units.h"
#include "tests/device_export.h"

#define DRIVER_VERSION 12000 /* whose entry points are asked for */
#define SKIPPED        77

static struct {
    __typeof__(&cuDeviceGet) device_get;
    __typeof__(&cuDeviceGetAttribute) device_attribute;
    __typeof__(&cuMemRetainAllocationHandle) retain;
    __typeof__(&cuMemRelease) release;
    __typeof__(&cuMemGetHandleForAddressRange) range_handle;
} driver;

static bool failed;

static void check(bool holds, const char *what, CUresult result) {
    printf("%s: %s (CUresult %d)\n", holds ? "ok" : "FAILED", what, (int)result);
    failed |= !holds;
}

static void need(bool holds, const char *what) {
    if (!holds) {
        printf("FAILED: %s: %s; CUDA: %s\n", what, gpupool_error_text(),
               cudaGetErrorString(cudaPeekAtLastError()));
        exit(1);
    }
}

static void load(const char *symbol, void **ret_function) {
    enum cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t error =
        cudaGetDriverEntryPointByVersion(symbol, ret_function, DRIVER_VERSION, cudaEnableDefault, &status);
#else
    cudaError_t error = cudaGetDriverEntryPoint(symbol, ret_function, cudaEnableDefault, &status);
#endif

    need(error == cudaSuccess && status == cudaDriverEntryPointSuccess && *ret_function != NULL, symbol);
}

static void load_driver(void) {
    load("cuDeviceGet", (void **)&driver.device_get);
    load("cuDeviceGetAttribute", (void **)&driver.device_attribute);
    load("cuMemRetainAllocationHandle", (void **)&driver.retain);
    load("cuMemRelease", (void **)&driver.release);
    load("cuMemGetHandleForAddressRange", (void **)&driver.range_handle);
}

/* Device 0 of this process, which the buffers are on. */
static bool device_supports_dma_buf(void) {
    CUdevice device;
    int value = 0;

    need(driver.device_get(&device, 0) == CUDA_SUCCESS, "cuDeviceGet");
    need(driver.device_attribute(&value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, device) == CUDA_SUCCESS,
         "cuDeviceGetAttribute");
    return value != 0;
}

static void check_allocation_handle(void *data, bool is_vmm) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = driver.retain(&handle, data);

    if (!is_vmm) {
        check(result == CUDA_ERROR_INVALID_VALUE, "ipc: the driver knows no allocation behind the address",
              result);
        return;
    }
    check(result == CUDA_SUCCESS, "vmm: the driver knows the allocation behind the address", result);
    if (result == CUDA_SUCCESS) {
        result = driver.release(handle);
        check(result == CUDA_SUCCESS, "vmm: its handle is released again", result);
    }
}

/* The range is the pages of the host's size that lie in the buffer. */
static void check_dma_buf(void *data, uint64_t size_bytes, bool is_vmm) {
    uintptr_t page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)data + page_bytes - 1) / page_bytes * page_bytes;
    uintptr_t end = ((uintptr_t)data + size_bytes) / page_bytes * page_bytes;
    int fd = -1;
    CUresult result = driver.range_handle(&fd, (CUdeviceptr)first, (size_t)(end - first),
                                          CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);

    if (is_vmm)
        check(result == CUDA_SUCCESS && fd >= 0, "vmm: the range has a DMA-BUF descriptor", result);
    else
        check(result == CUDA_ERROR_INVALID_VALUE, "ipc: the range has no DMA-BUF descriptor", result);
    if (result == CUDA_SUCCESS && fd >= 0)
        close(fd);
}

static void check_pool(const char *export_as) {
    const bool is_vmm = strcmp(export_as, "vmm") == 0;
    char config[] = "/tmp/gpupool-registration-XXXXXX", text[128];
    const char *const arguments[] = {"--gpu", "cuda", "--config", config, "--log-level", "warning", NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    uint32_t pool;

    snprintf(text, sizeof text, "[device]\nexport = %s\nlimit = 256MiB\nstep = 16MiB\n", export_as);
    need(device_export_write_config(config, text), "a configuration file");
    options.socket = "private";
    options.daemon_arguments = arguments;
    int r = gpupool_open(&options, &client);
    unlink(config);
    need(r == 0, "starting a daemon");
    need(gpupool_device_pool(client, 0, &pool) == 0, "the pool of device 0");
    need(gpupool_acquire(client, pool, 8 * MIB, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &buffer) == 0,
         "acquire");
    check_allocation_handle(buffer.data, is_vmm);
    if (device_supports_dma_buf())
        check_dma_buf(buffer.data, buffer.size_bytes, is_vmm);
    else
        printf("skipped: %s: device 0 does not support DMA-BUF\n", export_as);
    need(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM) == 0, "release");
    gpupool_close(client);
}

int main(void) {
    int count = 0;

    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
        puts("no GPU here");
        return SKIPPED;
    }
    /* The calls below want a context of the calling thread. */
    need(cudaSetDevice(0) == cudaSuccess && cudaFree(NULL) == cudaSuccess, "the context of device 0");
    load_driver();
    check_pool("ipc");
    check_pool("vmm");
    return failed ? 1 : 0;
}
