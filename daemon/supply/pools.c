/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/pools.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/units.h"
#include "daemon/loop/log.h"
#include "daemon/supply/cgroup.h"
#include "daemon/supply/neighbours.h"
#include "daemon/supply/numa.h"
#include "daemon/supply/supplier.h"

/* A pool's sizes, as the core takes them. */
static struct pool_sizes sizes_of(const struct config_pool_sizes *sizes) {
    return (struct pool_sizes){.limit_bytes = sizes->limit_bytes,
                               .step_bytes = sizes->step_bytes,
                               .reserve_bytes = sizes->reserve_bytes,
                               .low_water_bytes = sizes->low_water_bytes,
                               .limit_of = sizes->limit_of};
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

/* Where the driver is set up not to clear memory, the daemon does it. */
static void look_for_unclean_driver(struct supplier *supplier) {
    const struct backing_kind *kind = backing_kind(supplier->segment_kind);

    if (supplier->gpu == NULL || kind->zeroed_by != NULL)
        return;
    supplier->unclean = supplier->gpu->unclean_setting(kind->pool_kind == PROTO_POOL_HOST);
    if (supplier->unclean != NULL)
        log_warning("%s: the driver's setting %s keeps it from clearing memory, so the daemon sets new "
                    "memory to zero "
                    "itself, in a CUDA context",
                    supplier->pool->name, supplier->unclean);
}

/* The objects that pools_add() works on. */
struct setup {
    struct core *core;
    const struct machine *machine;
    struct config *config;
    struct store *store;
    const struct pool_place *place; /* only the pool of it is added; NULL: all that are not there yet */
    unsigned n_warnings;
};

static bool is_at(const struct pool_config *config, enum proto_pool_kind kind, int numa_node,
                  const uint8_t *uuid) {
    return config->kind == kind &&
           (kind == PROTO_POOL_HOST ? config->numa_node == numa_node
                                    : memcmp(config->uuid, uuid, PROTO_UUID_BYTES) == 0);
}

static bool is_wanted(const struct setup *setup, const struct pool_config *config) {
    const struct pool_place *place = setup->place;

    if (place != NULL)
        return is_at(config, place->kind, place->numa_node, place->uuid);
    for (unsigned i = 0; i < setup->core->n_pools; i++) {
        const struct pool *pool = setup->core->pools[i];
        if (is_at(config, pool->kind, pool->numa_node, pool->uuid))
            return false;
    }
    return true;
}

/* The kind of the pool's segments: a pool that has some of a daemon before goes on with theirs. */
static enum proto_segment_kind choose_kind(const struct setup *setup, const struct pool_config *config,
                                           const struct config_pool_sizes *sizes) {
    enum proto_segment_kind kind = backing_kind_of_pool(config->kind, sizes->export_as);

    if (setup->place == NULL || setup->place->segment_kind == kind)
        return kind;
    log_warning(
        "%s: export = %s takes effect when gpupoold has been stopped: its memory of before the restart "
        "is export = %s",
        config->name, backing_kind(kind)->export_name, backing_kind(setup->place->segment_kind)->export_name);
    return setup->place->segment_kind;
}

static int add_pool(struct setup *setup, struct pool_config *pool_config, const struct pool_total *total) {
    struct config_pool_sizes sizes;
    struct pool *pool;
    bool is_host = pool_config->kind == PROTO_POOL_HOST;

    if (!is_wanted(setup, pool_config))
        return 0;
    int number = is_host ? pool_config->numa_node : pool_config->device;
    config_note_place(setup->config, pool_config->kind, is_host ? NULL : pool_config->uuid, number);
    config_resolve(setup->config, pool_config->kind, is_host ? NULL : pool_config->uuid, number, total->bytes,
                   &sizes);
    if (!sizes.enabled)
        return 0;
    struct supplier *supplier = calloc(1, sizeof *supplier);
    if (supplier == NULL)
        return -ENOMEM;
    supplier->total = *total;
    setup->n_warnings += config_cut_limit(pool_config->name, total->bytes, supplier->total.of, &sizes);
    setup->n_warnings += config_check_sizes(pool_config->name, &sizes);
    pool_config->sizes = sizes_of(&sizes);
    enum proto_segment_kind segment_kind = choose_kind(setup, pool_config, &sizes);
    const struct backing_kind *kind = backing_kind(segment_kind);
    pool_config->needs_vmm = kind->is_for_driver;
    pool_config->takes_descriptors = kind->takes_descriptor;
    int r = core_add_pool(setup->core, pool_config, &pool);
    if (r < 0) {
        free(supplier);
        return r;
    }
    supplier->pool = pool;
    supplier->store = setup->store;
    supplier->segment_kind = segment_kind;
    if (kind->needs_driver)
        supplier->gpu = setup->machine->gpu;
    supplier->is_simulated = setup->machine->gpu_kind == PROTO_GPU_SIM;
    if (supplier->gpu != NULL)
        supplier->device = is_host ? device_near(supplier->gpu, number) : (unsigned)number;
    supplier->huge_pages = sizes.huge_pages;
    supplier->zero = sizes.zero;
    look_for_unclean_driver(supplier);
    pool->owner = supplier;
    return 0;
}

static int add_device_pools(struct setup *setup) {
    unsigned count;

    int r = setup->machine->gpu->device_count(&count);
    if (r != 0) {
        log_error("counting the GPUs failed with %s", setup->machine->gpu->error_name(r));
        return -EIO;
    }
    for (unsigned device = 0; device < count; device++) {
        struct gpu_device description;
        struct pool_config pool = {.kind = PROTO_POOL_DEVICE, .device = (int)device};
        r = setup->machine->gpu->device_describe(device, &description);
        if (r != 0) {
            log_error("device %u cannot be described (%s) and gets no pool", device,
                      setup->machine->gpu->error_name(r));
            continue;
        }
        memcpy(pool.uuid, description.uuid.bytes, sizeof pool.uuid);
        pool.numa_node = description.numa_node;
        pool.name = description.name;
        const struct pool_total total = {description.total_bytes, "the GPU has"};
        r = add_pool(setup, &pool, &total);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The memory that the pool of a node can be of: the node's, or what the daemon's control group allows. Huge
 * pages of hugetlb do not count in the group. */
static struct pool_total host_total(const struct setup *setup, int node, uint64_t node_bytes,
                                    const struct cgroup_memory *group) {
    struct pool_total total = {node_bytes, "the node has"};
    struct config_pool_sizes sizes;

    config_resolve(setup->config, PROTO_POOL_HOST, NULL, node, node_bytes, &sizes);
    uint64_t free_huge_bytes =
        sizes.huge_pages == CONFIG_HUGE_PAGES_AUTO ? numa_free_huge_pages(node) * 2 * MIB : 0;
    if (sizes.huge_pages == CONFIG_HUGE_PAGES_REQUIRE || group->limit_bytes >= node_bytes ||
        node_bytes - group->limit_bytes <= free_huge_bytes)
        return total;
    total.bytes = group->limit_bytes + free_huge_bytes;
    snprintf(total.of, sizeof total.of, "the daemon's control group %s allows (%s; %s= in its unit)",
             group->group, group->setting, group->unit_setting);
    return total;
}

/* The limits of the pools of several nodes may be above what the group allows, although each is below. */
static unsigned check_sum(const struct setup *setup, const struct cgroup_memory *group) {
    uint64_t sum_bytes = 0;

    for (unsigned i = 0; i < setup->core->n_pools; i++) {
        const struct pool *pool = setup->core->pools[i];
        const struct supplier *supplier = pool->owner;
        if (pool->kind == PROTO_POOL_HOST && supplier->huge_pages != CONFIG_HUGE_PAGES_REQUIRE)
            sum_bytes += pool->limit_bytes;
    }
    if (sum_bytes <= group->limit_bytes)
        return 0;
    log_warning(
        "the limits of the host pools are %s together, above the %s that the daemon's control group %s "
        "allows (%s; %s= in its unit): the pools cannot grow so far",
        BYTES_TEXT(sum_bytes), BYTES_TEXT(group->limit_bytes), group->group, group->setting,
        group->unit_setting);
    return 1;
}

static int add_host_pools(struct setup *setup) {
    int nodes[NUMA_NODES_MAX];
    unsigned count = numa_nodes(nodes);
    struct cgroup_memory group;

    cgroup_memory("", &group);
    for (unsigned i = 0; i < count; i++) {
        uint64_t node_bytes, available;
        char name[POOL_NAME_SIZE];
        struct pool_config pool = {
            .kind = PROTO_POOL_HOST, .device = -1, .numa_node = nodes[i], .name = name};
        int r = numa_memory(nodes[i], &node_bytes, &available);
        if (r < 0) {
            log_error("the memory of NUMA node %d is not known (%s); it gets no pool", nodes[i],
                      strerror(-r));
            continue;
        }
        snprintf(name, sizeof name, "host memory, node %d", nodes[i]);
        const struct pool_total total = host_total(setup, nodes[i], node_bytes, &group);
        r = add_pool(setup, &pool, &total);
        if (r < 0)
            return r;
    }
    if (count > 1)
        setup->n_warnings += check_sum(setup, &group);
    return 0;
}

/* The driver gives memory to whichever daemon asks first: growth of the other one fails then. */
static void warn_of_neighbours(struct notices *notices) {
    pid_t pid = neighbours_find("/proc", getpid(), getppid());

    if (pid == 0)
        return;
    notices_add(
        notices,
        "Another gpupoold ran when this one started: set 'limit' so that the device pools of both fit.");
    log_warning(
        "another gpupoold runs, pid %d, and may have pools on the same GPUs: set 'limit' of [device] in both "
        "so that they fit",
        (int)pid);
}

int pools_open_gpu(struct machine *machine, const struct config *config, const char *sim_path,
                   struct notices *notices) {
    enum config_gpu wanted = config->gpu;
    int r;

    if (wanted == CONFIG_GPU_NONE)
        return 0;
    if (wanted == CONFIG_GPU_SIM) {
        struct gpu_sim_options options = {
            .devices = config->sim_gpus, .device_bytes = config->sim_memory_bytes, .export_path = sim_path};
        r = gpu_sim(&options, &machine->gpu);
        if (r != 0) {
            if (gpu_sim_missing() != NULL)
                log_error("the simulated GPU is a library of its own, which cannot be loaded: %s",
                          gpu_sim_missing());
            else
                log_error("the simulated GPU cannot be started (error %d)", r);
            return -EIO;
        }
        machine->gpu_kind = PROTO_GPU_SIM;
        machine->gpu->contexts_by_hand();
        notices_add(notices, "The GPUs are simulated: device memory is ordinary memory of this machine.");
        log_warning("the GPUs are simulated (gpu = sim): device memory is ordinary memory of this machine");
        return 0;
    }
    /* An MPS client would die with the first worker that is killed under MPS (measured on H200: a killed
     * worker left cudaErrorIllegalAddress in the daemon's context). No MPS server listens in a directory that
     * does not exist. A daemon without a context has nothing that could be poisoned, but may make one later.
     */
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/gpupoold-stays-out-of-mps", 1);
    r = gpu_cuda(&machine->gpu);
    if (r == 0) {
        machine->gpu_kind = PROTO_GPU_CUDA;
        machine->gpu->contexts_by_hand();
        warn_of_neighbours(notices);
        return 0;
    }
    machine->gpu = NULL;
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
    notices_add(notices, gpu_cuda_built() ? "No GPU was found: host memory only."
                                          : "Built without a CUDA toolkit: host memory only.");
    log_info("%s", notices->texts[notices->count - 1]);
    return 0;
}

static int add_pools(struct setup *setup) {
    int r = 0;

    if (setup->machine->gpu != NULL)
        r = add_device_pools(setup);
    if (r == 0)
        r = add_host_pools(setup);
    return r;
}

/* Keeps the number of a pool that is not there any more. */
static int add_gone(const struct setup *setup) {
    const struct pool_place *place = setup->place;
    const struct backing_kind *kind = backing_kind(place->segment_kind);
    struct supplier *supplier = calloc(1, sizeof *supplier);
    struct pool_config config = {
        .kind = place->kind,
        .device = place->kind == PROTO_POOL_HOST ? -1 : 0,
        .numa_node = place->numa_node,
        .name = place->kind == PROTO_POOL_HOST ? "host memory that is not configured any more"
                                               : "a device that is not there any more",
        .needs_vmm = kind->is_for_driver,
        .takes_descriptors = kind->takes_descriptor,
    };

    if (supplier == NULL)
        return -ENOMEM;
    memcpy(config.uuid, place->uuid, sizeof config.uuid);
    *supplier =
        (struct supplier){.segment_kind = place->segment_kind, .store = setup->store, .is_gone = true};
    int r = core_add_pool(setup->core, &config, &supplier->pool);
    if (r < 0) {
        free(supplier);
        return r;
    }
    supplier->pool->owner = supplier;
    return 0;
}

int pools_add(const struct pools_terms *terms, unsigned *n_warnings) {
    struct setup setup = {
        .core = terms->core, .machine = terms->machine, .config = terms->config, .store = terms->store};
    int r = 0;

    for (unsigned i = 0; r == 0 && i < terms->n_places; i++) {
        setup.place = &terms->places[i];
        r = add_pools(&setup);
        if (r == 0 && setup.core->n_pools == i)
            r = add_gone(&setup);
    }
    setup.place = NULL;
    if (r == 0)
        r = add_pools(&setup);
    if (r < 0)
        return r;
    *n_warnings += setup.n_warnings + config_check_sections(setup.config);
    if (setup.core->n_pools == 0) {
        log_error("no pool is enabled: there is nothing to serve");
        return -ENODEV;
    }
    return 0;
}

int pools_start(struct core *core, uv_loop_t *loop) {
    int r = 0;

    for (unsigned i = 0; r == 0 && i < core->n_pools; i++)
        r = supplier_start(core->pools[i]->owner, loop);
    return r;
}

void pools_stop(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++)
        supplier_stop(core->pools[i]->owner);
}

void pools_free_suppliers(struct core *core) {
    for (unsigned i = 0; i < core->n_pools; i++) {
        free(core->pools[i]->owner);
        core->pools[i]->owner = NULL;
    }
}

static void configure_pool(struct pool *pool, const struct config *config) {
    struct supplier *supplier = pool->owner;
    struct config_pool_sizes sizes;
    bool is_host = pool->kind == PROTO_POOL_HOST;

    if (supplier->is_gone)
        return;
    config_resolve(config, pool->kind, is_host ? NULL : pool->uuid, is_host ? pool->numa_node : pool->device,
                   supplier->total.bytes, &sizes);
    config_cut_limit(pool->name, supplier->total.bytes, supplier->total.of, &sizes);
    config_check_sizes(pool->name, &sizes);
    supplier->huge_pages = sizes.huge_pages;
    supplier->zero = sizes.zero;
    if (supplier->segment_kind != backing_kind_of_pool(pool->kind, sizes.export_as))
        log_warning("%s has another export now: that needs a restart", pool->name);
    const struct pool_sizes pool_sizes = sizes_of(&sizes);
    core_pool_configure(pool, &pool_sizes, clock_now_ns());
}

void pools_configure(struct core *core, const struct config *config) {
    for (unsigned i = 0; i < core->n_pools; i++)
        configure_pool(core->pools[i], config);
}
