/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU: a table of gpu/gpu.h in which each call may fail. No memory is touched. Its streams run when they
 * are drawn (streams.c); addresses map what the clients have mapped there (mappings.c).
 */
#include "tests/joint/gpu.h"

bool gpu_fails(void) {
    if (world.is_calm || !one_in(world.gpu_fails))
        return false;
    world.tally->driver_errors++;
    return true;
}

void gpu_forget(unsigned client) {
    mappings_forget(client);
    streams_forget(client);
}

/* --- devices --- */

static int device_count(unsigned *ret_count) {
    *ret_count = 2;
    return 0;
}

static int device_describe(unsigned device, struct gpu_device *ret_device) {
    *ret_device = (struct gpu_device){
        .uuid = {{(uint8_t)(device + 1)}}, .name = "joint", .total_bytes = GIB, .numa_node = -1};
    return 0;
}

static int device_current(unsigned *ret_device) {
    *ret_device = 0;
    return 0;
}

static int device_check(unsigned device) {
    (void)device;
    return 0;
}

static bool has_context(unsigned device) {
    (void)device;
    return true;
}

static const char *error_name(int error) {
    (void)error;
    return "cudaErrorUnknown";
}

static const char *error_text(int error) {
    (void)error;
    return "it was drawn";
}

const struct gpu *gpu_table(void) {
    static struct gpu table = {
        .name = "joint",
        .device_count = device_count,
        .device_describe = device_describe,
        .device_check = device_check,
        .has_context = has_context,
        .device_current = device_current,
        .error_name = error_name,
        .error_text = error_text,
    };

    mappings_fill_table(&table);
    streams_fill_table(&table);
    return &table;
}

/* The client takes this table for CUDA's. */
int __wrap_gpu_cuda(const struct gpu **ret_gpu);
int __wrap_gpu_cuda(const struct gpu **ret_gpu) {
    *ret_gpu = gpu_table();
    return 0;
}
