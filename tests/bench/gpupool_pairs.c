/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpupool as a subject of workload.h: the client with its cache, connected to the daemon that GPUPOOL_SOCKET
 * names. --subject buffer is gpupool_acquire() and gpupool_release(), pointer is gpupool_alloc() and
 * gpupool_free(). Device memory where there is some, on a stream of the thread's own, else host memory. With
 * --memory pinned, host memory that no GPU work touched (which is what a pinned allocator is asked for when
 * nothing was enqueued), and as --subject buffer_on_stream host memory that is given back on a stream.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gpupool/gpupool.h>

#define POOLS_MAX 64u

static struct gpupool_client *client;
static uint32_t pool;
static bool by_pointer, on_stream;

struct subject_block {
    union {
        struct gpupool_buffer buffer;
        void *memory; /* by_pointer */
    };
};

static void fail(const char *what) {
    fprintf(stderr, "gpupool_pairs: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static inline void subject_take(struct subject_block *block, uint64_t size_bytes, void *stream) {
    if (by_pointer) {
        block->memory = gpupool_alloc(client, pool, size_bytes, stream);
        if (__builtin_expect(block->memory == NULL, 0))
            fail("alloc");
    } else if (__builtin_expect(
                   gpupool_acquire(client, pool, size_bytes, stream, GPUPOOL_FOREVER, 0, &block->buffer) < 0,
                   0)) {
        fail("acquire");
    }
}

static inline void subject_give(struct subject_block *block, void *stream) {
    int r =
        by_pointer ? gpupool_free(block->memory, stream) : gpupool_release(client, &block->buffer, stream);
    if (__builtin_expect(r < 0, 0))
        fail("release");
}

static void *subject_stream_new(void) {
    void *stream = GPUPOOL_NO_STREAM;
    if (on_stream && gpupool_stream_create(client, 0, &stream) < 0)
        fail("stream");
    return stream;
}

static void subject_settle(void *stream) {
    if (on_stream && gpupool_stream_synchronize(client, 0, stream) < 0)
        fail("synchronize");
}

static void subject_empty(void) {
    if (gpupool_trim(client, NULL) < 0)
        fail("trim");
}

/* The pool's own figures: this is its only client. */
static void subject_memory(uint64_t *ret_reserved, uint64_t *ret_leased) {
    struct gpupool_pool pools[POOLS_MAX];
    size_t count;
    if (gpupool_pools(client, pools, POOLS_MAX, &count) < 0)
        fail("pools");
    for (size_t i = 0; i < count && i < POOLS_MAX; i++) {
        if (pools[i].id == pool) {
            *ret_reserved = pools[i].reserved_bytes;
            *ret_leased = pools[i].leased_bytes;
            return;
        }
    }
    fprintf(stderr, "gpupool_pairs: the pool is gone\n");
    exit(1);
}

#include "tests/bench/workload.h"

int main(int argc, char **argv) {
    struct workload work = workload_parse(argc, argv);
    bool on_device;

    by_pointer = strcmp(work.subject, "pointer") == 0;
    on_stream = strcmp(work.subject, "buffer_on_stream") == 0;
    if (!by_pointer && !on_stream && strcmp(work.subject, "buffer") != 0)
        workload_usage(argv[0]);
    if (gpupool_open(NULL, &client) < 0)
        fail("open");
    on_device = !work.pinned && gpupool_gpu_kind(client) != GPUPOOL_GPU_NONE;
    on_stream |= on_device;
    if ((on_device ? gpupool_device_pool(client, 0, &pool) : gpupool_host_pool(client, -1, &pool)) < 0)
        fail("pool");
    workload_run(&work);
    gpupool_close(client);
    return 0;
}
