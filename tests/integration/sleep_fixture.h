/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_SLEEP_FIXTURE_H
#define TESTS_INTEGRATION_SLEEP_FIXTURE_H
/*
 * The fixture of the tests of buffers that sleep: a daemon whose device pool has segments of 2 MiB that can be mapped
 * anywhere, clients of the test's own process, and what can be seen of an address. To be included once, by a test
 * program.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/units.h"
#include "client/api/client.h"
#include "gpu/sim/sim.h"
#include "tests/integration/must.h"
#include "tests/integration/puppet.h"

#define SEGMENT_BYTES (2 * MIB)
#define POOL_BYTES    (64 * MIB)
#define SLEEPER_BYTES (7 * MIB) /* in four segments, the last of them in part */
#define SLEEPER_ROOM  (8 * MIB)
#define SLEEP_CONFIG  "[device]\nexport = vmm\nlimit = 64MiB\n[host]\nlimit = 32MiB\nstep = 4MiB\n"

static const enum gpupool_keep keeps[] = {GPUPOOL_KEEP_NOTHING, GPUPOOL_KEEP_ON_GPU, GPUPOOL_KEEP_IN_HOST};
#define KEEPS (sizeof keeps / sizeof *keeps)

/* The kinds of clients: with a cache and its thread, with the application's loop, without a cache. */
static const uint32_t client_kinds[] = {0, GPUPOOL_OPEN_NO_THREAD, GPUPOOL_OPEN_NO_CACHE};
#define CLIENT_KINDS (sizeof client_kinds / sizeof *client_kinds)

static inline void sleep_start_with(struct test_daemon *daemon, const struct daemon_options *options) {
    assert_int_equal(setenv("GPUPOOL_SIM_LATENCY", "0", 1), 0); /* for this process's clients */
    daemon_start(daemon, options);
}

static inline void sleep_start(struct test_daemon *daemon) {
    sleep_start_with(daemon, &(struct daemon_options){.config = SLEEP_CONFIG, .sim_gpus = 1});
}

/* Nothing is leased any more. */
static inline void sleep_stop(struct test_daemon *daemon) {
    WAIT_UNTIL(daemon_sum(daemon, "leased_bytes") == 0 && daemon_sum(daemon, "quarantined_bytes") == 0);
    assert_int_equal(daemon_sum(daemon, "leases"), 0);
    daemon_stop(daemon);
}

/* alloc_timeout_ns: how long a sleep may take. */
static inline struct gpupool_client *sleep_open_for(const struct test_daemon *daemon, uint32_t flags,
                                                    uint64_t alloc_timeout_ns) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;

    options.socket = daemon->socket;
    options.flags = flags;
    options.alloc_timeout_ns = alloc_timeout_ns;
    MUST(gpupool_open(&options, &client));
    return client;
}

static inline struct gpupool_client *sleep_open(const struct test_daemon *daemon, uint32_t flags) {
    return sleep_open_for(daemon, flags, 0);
}

static inline uint32_t device_pool(struct gpupool_client *client) {
    uint32_t pool = 0;

    MUST(gpupool_device_pool(client, 0, &pool));
    return pool;
}

static inline struct gpupool_buffer acquire_sleeper(struct gpupool_client *client, uint64_t size_bytes) {
    struct gpupool_buffer buffer;

    MUST(gpupool_acquire(client, device_pool(client), size_bytes, NULL, GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP,
                         &buffer));
    return buffer;
}

static inline uint64_t leased_on_device(struct test_daemon *daemon) {
    return daemon_pool(daemon, "device", 0, "leased_bytes");
}

/* Whether an address of this process can be read: the kernel reads it for the test. */
static inline bool is_readable(const void *address) {
    int ends[2];

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    ssize_t n = write(ends[1], address, 1);
    assert_true(n == 1 || errno == EFAULT);
    close(ends[0]);
    close(ends[1]);
    return n == 1;
}

/* Whether the memory of a buffer can be read, which is so for all of it or for nothing. */
static inline bool is_mapped(const struct gpupool_buffer *buffer) {
    bool is = is_readable(buffer->data);

    for (uint64_t offset = 0; offset < buffer->capacity_bytes; offset += SEGMENT_BYTES / 2)
        assert_int_equal(is_readable((char *)buffer->data + offset), is);
    return is;
}

#endif
