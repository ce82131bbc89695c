/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/pools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "daemon/loop/log.h"
#include "daemon/supply/numa.h"

struct pool_sizes pools_sizes(const struct config_pool_sizes *sizes) {
    return (struct pool_sizes){.limit_bytes = sizes->limit_bytes,
                               .step_bytes = sizes->step_bytes,
                               .reserve_bytes = sizes->reserve_bytes,
                               .low_water_bytes = sizes->low_water_bytes};
}

enum proto_segment_kind pools_segment_kind(enum proto_pool_kind kind, const struct config_pool_sizes *sizes) {
    bool is_vmm = sizes->export_as == CONFIG_EXPORT_VMM;

    if (kind == PROTO_POOL_HOST)
        return is_vmm ? PROTO_SEGMENT_HOST_VMM_FD : PROTO_SEGMENT_MEMFD;
    return is_vmm ? PROTO_SEGMENT_VMM_FD : PROTO_SEGMENT_LEGACY_IPC;
}

/* A device on the NUMA node, else the first one. */
static unsigned device_near(const struct gpu *gpu, int node) {
    struct gpu_device description;
    unsigned count = 0;

    if (gpu->device_count(&count) != 0)
        return 0;
    for (unsigned device = 0; device < count; device++)
        if (gpu->device_describe(device, &description) == 0 && description.numa_node == node)
            return device;
    return 0;
}

static int add_pool(struct daemon *daemon, struct pool_config *pool_config, uint64_t total_bytes) {
    struct config_pool_sizes sizes;
    struct pool *pool;
    bool is_host = pool_config->kind == PROTO_POOL_HOST;

    int number = is_host ? pool_config->numa_node : pool_config->device;
    config_note_place(daemon->config, pool_config->kind, is_host ? NULL : pool_config->uuid, number);
    config_resolve(daemon->config, pool_config->kind, is_host ? NULL : pool_config->uuid, number, total_bytes,
                   &sizes);
    if (!sizes.enabled)
        return 0;
    pool_config->sizes = pools_sizes(&sizes);
    pool_config->needs_vmm = sizes.export_as == CONFIG_EXPORT_VMM;
    daemon->n_mistakes += config_check_sizes(pool_config->name, &sizes);
    struct supplier *supplier = calloc(1, sizeof *supplier);
    if (supplier == NULL)
        return -ENOMEM;
    int r = core_add_pool(daemon->core, pool_config, &pool);
    if (r < 0) {
        free(supplier);
        return r;
    }
    supplier->daemon = daemon;
    supplier->pool = pool;
    supplier->total_bytes = total_bytes;
    supplier->segment_kind = pools_segment_kind(pool_config->kind, &sizes);
    if (supplier->segment_kind != PROTO_SEGMENT_MEMFD)
        supplier->gpu = daemon->gpu;
    if (supplier->gpu != NULL)
        supplier->device = is_host ? device_near(supplier->gpu, number) : (unsigned)number;
    supplier->huge_pages = sizes.huge_pages;
    pool->owner = supplier;
    return 0;
}

static int add_device_pools(struct daemon *daemon) {
    unsigned count;

    int r = daemon->gpu->device_count(&count);
    if (r != 0) {
        log_error("counting the GPUs failed with %s", daemon->gpu->error_name(r));
        return -EIO;
    }
    for (unsigned device = 0; device < count; device++) {
        struct gpu_device description;
        struct pool_config pool = {.kind = PROTO_POOL_DEVICE, .device = (int)device};
        r = daemon->gpu->device_describe(device, &description);
        if (r != 0) {
            log_error("device %u cannot be described (%s) and gets no pool", device,
                      daemon->gpu->error_name(r));
            continue;
        }
        memcpy(pool.uuid, description.uuid.bytes, sizeof pool.uuid);
        pool.numa_node = description.numa_node;
        pool.name = description.name;
        r = add_pool(daemon, &pool, description.total_bytes);
        if (r < 0)
            return r;
    }
    return 0;
}

static int add_host_pools(struct daemon *daemon) {
    int nodes[NUMA_NODES_MAX];
    unsigned count = numa_nodes(nodes);

    for (unsigned i = 0; i < count; i++) {
        uint64_t total, available;
        char name[POOL_NAME_SIZE];
        struct pool_config pool = {
            .kind = PROTO_POOL_HOST, .device = -1, .numa_node = nodes[i], .name = name};
        int r = numa_memory(nodes[i], &total, &available);
        if (r < 0) {
            log_error("the memory of NUMA node %d is not known (%s); it gets no pool", nodes[i],
                      strerror(-r));
            continue;
        }
        snprintf(name, sizeof name, "host memory, node %d", nodes[i]);
        r = add_pool(daemon, &pool, total);
        if (r < 0)
            return r;
    }
    return 0;
}

int pools_open_gpu(struct daemon *daemon) {
    enum config_gpu wanted = daemon->config->gpu;
    int r;

    if (wanted == CONFIG_GPU_NONE)
        return 0;
    if (wanted == CONFIG_GPU_SIM) {
        char path[DAEMON_SIM_PATH_SIZE];
        struct gpu_sim_options options = {.devices = daemon->config->sim_gpus,
                                          .device_bytes = daemon->config->sim_memory_bytes,
                                          .export_path = daemon_sim_path(daemon, path)};
        r = gpu_sim(&options, &daemon->gpu);
        if (r != 0) {
            if (gpu_sim_missing() != NULL)
                log_error("the simulated GPU is a library of its own, which cannot be loaded: %s",
                          gpu_sim_missing());
            else
                log_error("the simulated GPU cannot be started (error %d)", r);
            return -EIO;
        }
        daemon->gpu_kind = PROTO_GPU_SIM;
        daemon_add_notice(daemon,
                          "The GPUs are simulated: device memory is ordinary memory of this machine.");
        log_warning("the GPUs are simulated (gpu = sim): device memory is ordinary memory of this machine");
        return 0;
    }
    /* An MPS client would die with the first worker that is killed under MPS (measured on H200: a killed
     * worker left cudaErrorIllegalAddress in the daemon's context). No MPS server listens in a directory that
     * does not exist. */
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/gpupoold-stays-out-of-mps", 1);
    r = gpu_cuda(&daemon->gpu);
    if (r == 0) {
        daemon->gpu_kind = PROTO_GPU_CUDA;
        return 0;
    }
    daemon->gpu = NULL;
    if (wanted == CONFIG_GPU_CUDA) {
        log_error("gpu = cuda, but %s: install the NVIDIA driver, or use --gpu none or --gpu sim",
                  !gpu_cuda_built()          ? "this build was made without a CUDA toolkit"
                  : r == GPU_ERROR_NO_DEVICE ? "the driver sees no GPU"
                  : r == GPU_ERROR_INSUFFICIENT_DRIVER
                      ? "there is no driver, or it is older than the CUDA runtime"
                      : "the driver cannot be used");
        return -ENODEV;
    }
    if (r != GPU_ERROR_INSUFFICIENT_DRIVER && r != GPU_ERROR_NO_DEVICE)
        log_warning("the CUDA driver is there but cannot be used (error %d): serving host memory only", r);
    daemon_add_notice(daemon, gpu_cuda_built() ? "No GPU was found: host memory only."
                                               : "Built without a CUDA toolkit: host memory only.");
    log_info("%s", daemon->notices[daemon->n_notices - 1]);
    return 0;
}

int pools_add(struct daemon *daemon) {
    int r = 0;
    if (daemon->gpu != NULL)
        r = add_device_pools(daemon);
    if (r == 0)
        r = add_host_pools(daemon);
    if (r < 0)
        return r;
    daemon->n_mistakes += config_check_sections(daemon->config);
    if (daemon->core->n_pools == 0) {
        log_error("no pool is enabled: there is nothing to serve");
        return -ENODEV;
    }
    return 0;
}
