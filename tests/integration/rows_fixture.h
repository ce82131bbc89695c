/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_ROWS_FIXTURE_H
#define TESTS_INTEGRATION_ROWS_FIXTURE_H
/*
 * The fixture of the tests of rows: a daemon whose device pool has movable segments, and clients with arenas,
 * whose large buffers lie in several segments of 2 MiB. To be included once, by a test program.
 */
#include <stdlib.h>
#include <string.h>

#include "client/api/client.h"
#include "gpu/sim/sim.h"
#include "tests/entries.h"
#include "tests/integration/must.h"
#include "tests/integration/puppet.h"

#define SEGMENT_BYTES (2 * MIB)
#define ROW_BYTES     (22 * MIB)
#define ROWS_CONFIG   "[device]\nexport = vmm\nlimit = 128MiB\n[host]\nlimit = 32MiB\nstep = 4MiB\n"

static inline void rows_start(struct test_daemon *daemon, unsigned sim_gpus) {
    assert_int_equal(setenv("GPUPOOL_SIM_LATENCY", "0", 1), 0); /* for this process's clients */
    daemon_start(daemon, &(struct daemon_options){.config = ROWS_CONFIG, .sim_gpus = sim_gpus});
}

/* Nothing is leased any more. */
static inline void rows_stop(struct test_daemon *daemon) {
    WAIT_UNTIL(daemon_sum(daemon, "leased_bytes") == 0 && daemon_sum(daemon, "quarantined_bytes") == 0);
    assert_int_equal(daemon_sum(daemon, "leases"), 0);
    daemon_stop(daemon);
}

/* A process whose client has a cache, with arenas. A small buffer (slot 255) lies beside the arena. The next
 * one (slot 254) is the begin of it, so that later ones begin inside a segment. */
static inline void owner_start(struct puppet *owner, const struct test_daemon *daemon) {
    puppet_start_as(owner, daemon, (const char *const[]){"GPUPOOL_ARENAS=1", NULL}, 0);
    PUPPET_MUST(owner, puppet_call(owner, &(struct puppet_command){.verb = PUPPET_OPEN}));
    PUPPET_MUST(owner, puppet_acquire(owner, 255, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(owner, puppet_acquire(owner, 254, GPUPOOL_POOL_DEVICE, 5 * MIB, GPUPOOL_FOREVER, 0));
}

/* Acquires a buffer in several segments, fills and shares it. */
static inline void owner_share(struct puppet *owner, unsigned slot, uint64_t seed,
                               struct gpupool_token *ret_token) {
    PUPPET_MUST(owner, puppet_acquire(owner, slot, GPUPOOL_POOL_DEVICE, ROW_BYTES, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(owner, puppet_fill(owner, slot, seed));
    PUPPET_MUST(owner, puppet_share(owner, slot, ret_token));
}

/* A client in the test's own process. has_arenas: with a cache and arenas, as an owner's; else without. */
static inline struct gpupool_client *client_open(const struct test_daemon *daemon, bool has_arenas) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;

    options.socket = daemon->socket;
    options.flags = has_arenas ? 0 : GPUPOOL_OPEN_NO_CACHE;
    if (has_arenas)
        assert_int_equal(setenv("GPUPOOL_ARENAS", "1", 1), 0);
    MUST(gpupool_open(&options, &client));
    assert_int_equal(unsetenv("GPUPOOL_ARENAS"), 0);
    return client;
}

/* Bytes of addresses that the simulated driver uses in this process: reserved, whether they map a segment or
 * not. Other mappings that cannot be read are no multiples of a segment's granule, but for a sanitizer's:
 * with one, only those that map a segment are counted. */
static inline uint64_t count_addresses(void) {
    unsigned long start, end;
    char line[512], access[8];
    uint64_t bytes = 0;
    FILE *maps = fopen("/proc/self/maps", "re");

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps) != NULL) {
        assert_int_equal(sscanf(line, "%lx-%lx %7s", &start, &end, access), 3);
        bool is_aligned = start % SEGMENT_BYTES == 0 && end % SEGMENT_BYTES == 0;
        bool is_empty = strcmp(access, "---p") == 0 && !test_is_sanitized();
        if (is_aligned && (strstr(line, "gpupool-sim-vmm") != NULL || is_empty))
            bytes += end - start;
    }
    fclose(maps);
    return bytes;
}

/* Rows that a client keeps mapped and does not use. */
static inline unsigned count_idle_rows(struct gpupool_client *client) {
    struct rows *rows = &client->session.rows;

    pthread_mutex_lock(&rows->lock);
    unsigned count = rows->n_idle;
    pthread_mutex_unlock(&rows->lock);
    return count;
}

static inline unsigned count_descriptors(void) {
    return count_entries("/proc/self/fd");
}

#endif
