/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of what the core writes down: the time of one record of the flight recorder, and that of a pair of
 * requests that the daemon's core serves with and without the recorder, and with an estate whose step ends after
 * each of them, in turns. A ring of the usual size, so that it does not stay in the cache.
 *
 *     records [--rounds N]
 *
 * Prints the median of the rounds.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/units.h"
#include "daemon/core/core.h"
#include "daemon/core/inherit.h"
#include "daemon/core/lease.h"
#include "daemon/core/recorder.h"

#define N_RECORDS  200000u
#define N_LEASES   100000u
#define ROUNDS_MAX 101u
#define FILE_BYTES (16 * MIB)

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

static double median(double *values, unsigned n) {
    qsort(values, n, sizeof *values, compare);
    return values[n / 2];
}

static struct proto_records *make_file(uint32_t pools) {
    struct proto_records header;

    proto_records_lay_out(&header, FILE_BYTES, 336, pools);
    struct proto_records *file = mmap(NULL, header.file_bytes, PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (file == MAP_FAILED)
        exit(1);
    *file = header;
    return file;
}

static double time_records(struct core *core, const struct session *session) {
    uint64_t begin_ns = clock_now_ns();
    for (unsigned i = 0; i < N_RECORDS; i++)
        record(core, &(struct recorded){.kind = PROTO_RECORD_LEASE,
                                        .pool = core->pools[0],
                                        .session = session,
                                        .bytes = MIB,
                                        .value = i});
    return (double)(clock_now_ns() - begin_ns) / N_RECORDS;
}

/* A lease and its release, as the daemon's core sees them. */
static double time_leases(struct core *core, struct session *session) {
    const struct proto_acquire acquire = {.pool = 1, .size_bytes = MIB};
    struct answer answer;

    uint64_t begin_ns = clock_now_ns();
    for (unsigned i = 0; i < N_LEASES; i++) {
        if (core_acquire(session, i, &acquire, begin_ns) != 0 || !core_next_answer(core, &answer) ||
            answer.lease == NULL)
            exit(1);
        estate_end_step(core->estate);
        const struct proto_release release = {.lease = answer.lease->id,
                                              .generation = answer.lease->generation};
        if (core_release(session, &release, begin_ns) != 0)
            exit(1);
        estate_end_step(core->estate);
    }
    return (double)(clock_now_ns() - begin_ns) / N_LEASES;
}

#define ESTATE_BYTES (64 * ESTATE_CHUNK_BYTES)

static int grow(void *argument, size_t size_bytes) {
    (void)argument;
    return size_bytes <= ESTATE_BYTES ? 0 : -1;
}

/* A core with a pool of one segment, and a session. */
static struct core *make_core(struct estate *estate, struct session **ret_session) {
    const struct pool_config config = {
        .kind = PROTO_POOL_HOST,
        .device = -1,
        .name = "pool",
        .sizes = {.limit_bytes = 64 * MIB, .reserve_bytes = 64 * MIB, .step_bytes = 64 * MIB}};
    const struct peer peer = {.pid = 1, .uid = 1000, .command = "benchmark"};
    struct core *core;
    struct pool *pool;
    uint64_t bytes;

    if (core_new(&core) < 0 || (estate != NULL && core_keep(core, estate) < 0) ||
        core_add_pool(core, &config, &pool) < 0)
        exit(1);
    core_pool_ready(pool, 1);
    if (!core_next_growth(core, &pool, &bytes) || core_segment_made(pool, bytes, NULL, 1) < 0 ||
        core_session_open(core, &peer, 1, ret_session) != 0)
        exit(1);
    return core;
}

static struct estate *make_estate(void) {
    static const struct estate_owner owner = {.grow = grow};
    static struct estate estate;
    void *memory =
        mmap(NULL, ESTATE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (memory == MAP_FAILED || estate_make(&estate, memory, kept_kinds, KEPT_KINDS - 1, &owner) < 0)
        exit(1);
    return &estate;
}

int main(int argc, char **argv) {
    static const struct option long_options[] = {{"rounds", required_argument, NULL, 'r'}, {0}};
    double records[ROUNDS_MAX], with[ROUNDS_MAX], without[ROUNDS_MAX], keeping[ROUNDS_MAX];
    unsigned rounds = 21;
    struct session *session, *kept;
    int option;

    while ((option = getopt_long(argc, argv, "", long_options, NULL)) >= 0) {
        if (option != 'r' || (rounds = (unsigned)strtoul(optarg, NULL, 10)) == 0 || rounds > ROUNDS_MAX)
            return 2;
    }
    struct core *core = make_core(NULL, &session), *keeper = make_core(make_estate(), &kept);
    struct proto_records *file = make_file(core->n_pools);
    for (unsigned i = 0; i < rounds; i++) {
        core->recorder = (struct recorder){0};
        without[i] = time_leases(core, session);
        recorder_open(core, file);
        recorder_set_clock(core, 1, clock_now_ns());
        with[i] = time_leases(core, session);
        records[i] = time_records(core, session);
        keeping[i] = time_leases(keeper, kept);
    }
    printf("a record: %.1f ns\n", median(records, rounds));
    printf("a lease and its release in the core: %.1f ns with records, %.1f ns without, %.1f ns with an "
           "estate and no records\n",
           median(with, rounds), median(without, rounds), median(keeping, rounds));
    return 0;
}
