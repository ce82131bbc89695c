/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storm: 200 client processes, some at a time, that each take and give back 1,000 buffers of mixed sizes,
 * some shared; half of them are killed at a random moment. Afterwards nothing is leased or in quarantine, and
 * the daemon has the descriptors, threads and memory that it had after a first, smaller storm.
 *
 *   GPUPOOL_TEST_SEED              the same storm again (the seed is printed)
 *   GPUPOOL_TEST_STORM_PROCESSES   200
 *   GPUPOOL_TEST_STORM_DEVICE      how many of them use the device pool, all: a CUDA context takes 0.3 s
 * (H200)
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"

#define PROCESSES        200u
#define PROCESSES_FIRST  30u
#define AT_A_TIME        24u
#define ROUNDS           1000u
#define ROUNDS_A_REPORT  20u
#define HELD_MAX         6u
#define POOL_MIB         64u /* less than all of them may hold: some wait */
#define WAIT_FOR_ROOM_NS (20 * NS_PER_MS)
#define DEFAULT_SEED     20240611u
/* The difference that the daemon's own memory may show, by malloc's and libuv's habits. 200 sessions of a few
 * hundred bytes each that leaked would pass, a leaked packet each would not; ASan's quarantine of freed
 * memory is set to 1 MiB below, and its shadow follows the addresses that malloc hands out. */
#define GROWTH_MAX_BYTES           (2 * MIB)
#define GROWTH_MAX_SANITIZED_BYTES (8 * MIB)

/* --- in a worker --- */

struct storm {
    struct gpupool_client *client;
    uint32_t pools[2];
    unsigned n_pools, n_held;
    uint64_t state;
    struct gpupool_buffer held[HELD_MAX];
    uint64_t marks[HELD_MAX]; /* what was written to the first word; 0: shared, others write there */
};

/* Mixed: mostly small, some large. */
static uint64_t storm_size(struct storm *storm) {
    uint64_t random = test_random(&storm->state);
    uint64_t most = random % 16 == 0 ? 4 * MIB : random % 4 == 0 ? 256 * KIB : 8 * KIB;
    return 8 + test_random(&storm->state) % most;
}

/* Device memory is marked through copies every now and then: each is two driver calls. */
static int storm_mark(struct storm *storm, const struct gpupool_buffer *buffer, uint64_t mark) {
    if (buffer->kind == GPUPOOL_POOL_HOST) {
        memcpy(buffer->data, &mark, sizeof mark);
        return 0;
    }
    int r = gpupool_copy(storm->client, buffer->device, buffer->data, &mark, sizeof mark, NULL);
    return r < 0 ? r : gpupool_stream_synchronize(storm->client, buffer->device, NULL);
}

static int storm_has_mark(struct storm *storm, const struct gpupool_buffer *buffer, uint64_t mark) {
    uint64_t found = 0;
    if (buffer->kind == GPUPOOL_POOL_HOST) {
        memcpy(&found, buffer->data, sizeof found);
    } else {
        int r = gpupool_copy(storm->client, buffer->device, &found, buffer->data, sizeof found, NULL);
        if (r == 0)
            r = gpupool_stream_synchronize(storm->client, buffer->device, NULL);
        if (r < 0)
            return r;
    }
    return found == mark ? 0 : 1;
}

static int storm_drop(struct storm *storm, unsigned which) {
    struct gpupool_buffer *buffer = &storm->held[which];
    int r = storm->marks[which] == 0 ? 0 : storm_has_mark(storm, buffer, storm->marks[which]);
    if (r == 0)
        r = gpupool_release(storm->client, buffer, NULL);
    storm->n_held--;
    storm->held[which] = storm->held[storm->n_held];
    storm->marks[which] = storm->marks[storm->n_held];
    return r;
}

static int storm_keep(struct storm *storm, const struct gpupool_buffer *buffer, uint64_t mark) {
    storm->held[storm->n_held] = *buffer;
    storm->marks[storm->n_held++] = mark;
    return 0;
}

/* Takes one buffer, or shares one of its own and takes that again, or joins the storm's common one. */
static int storm_take(struct storm *storm, const struct gpupool_token *common) {
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    uint64_t random = test_random(&storm->state);

    if (random % 16 == 0) {
        int r = gpupool_attach(storm->client, common, GPUPOOL_NO_STREAM, 0, &buffer);
        return r < 0 ? r : storm_keep(storm, &buffer, 0);
    }
    if (random % 16 == 1 && storm->n_held > 0) {
        int r = gpupool_share(storm->client, &storm->held[0], GPUPOOL_NO_STREAM, &token);
        if (r == 0)
            r = gpupool_attach(storm->client, &token, GPUPOOL_NO_STREAM, 0, &buffer);
        return r < 0 ? r : storm_keep(storm, &buffer, storm->marks[0]);
    }
    uint64_t size = storm_size(storm), mark = test_random(&storm->state) | 1;
    int r = gpupool_acquire(storm->client, storm->pools[random / 16 % storm->n_pools], size, NULL,
                            WAIT_FOR_ROOM_NS, 0, &buffer);
    if (r == GPUPOOL_E_EXHAUSTED) { /* others have it all: somebody has to give way */
        while (r == GPUPOOL_E_EXHAUSTED && storm->n_held > 0)
            if (storm_drop(storm, 0) != 0)
                return 1;
        return 0;
    }
    if (r == 0)
        r = storm_mark(storm, &buffer, mark);
    return r < 0 ? r : storm_keep(storm, &buffer, mark);
}

static int storm_run(struct storm *storm, int fd, const struct gpupool_token *common) {
    for (unsigned round = 0; round < ROUNDS; round++) {
        int r = storm->n_held == HELD_MAX
                    ? storm_drop(storm, (unsigned)(test_random(&storm->state) % HELD_MAX))
                    : storm_take(storm, common);
        if (r != 0)
            return r;
        if (round % ROUNDS_A_REPORT == 0 && send(fd, "r", 1, MSG_NOSIGNAL) != 1)
            return 2;
    }
    while (storm->n_held > 0) {
        int r = storm_drop(storm, 0);
        if (r != 0)
            return r;
    }
    return 0;
}

/* argument: seed and whether it uses the device. The common token comes first on the socket. */
static int play_storm(int fd, const char *argument) {
    unsigned long long seed;
    unsigned use_device;
    struct gpupool_token common;
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    if (sscanf(argument, "%llu:%u", &seed, &use_device) != 2 ||
        recv(fd, &common, sizeof common, 0) != (ssize_t)sizeof common)
        return 90;
    struct storm storm = {.state = seed, .n_pools = 1};
    options.flags = use_device ? 0 : GPUPOOL_OPEN_NO_CUDA;
    int r = gpupool_open(&options, &storm.client);
    if (r == 0)
        r = gpupool_host_pool(storm.client, -1, &storm.pools[0]);
    if (r == 0 && use_device)
        r = gpupool_device_pool(storm.client, 0, &storm.pools[storm.n_pools++]);
    if (r == 0)
        r = storm_run(&storm, fd, &common);
    if (r != 0)
        fprintf(stderr, "storm %s: %s (%d): %s\n", argument, gpupool_error_name(r), r, gpupool_error_text());
    gpupool_close(storm.client);
    return r == 0 ? 0 : 1;
}

/* --- in the test --- */

struct runner {
    struct puppet process;
    unsigned reports, killed_at; /* in reports; 0: lives */
};

static void runner_start(struct runner *runner, const struct test_daemon *daemon, uint64_t *state,
                         bool use_device, bool is_killed, const struct gpupool_token *common) {
    char argument[64];
    snprintf(argument, sizeof argument, "%llu:%u", (unsigned long long)test_random(state), use_device);
    *runner = (struct runner){0};
    if (is_killed)
        runner->killed_at = 1 + (unsigned)(test_random(state) % (ROUNDS / ROUNDS_A_REPORT));
    puppet_start_role(&runner->process, daemon, "storm", argument);
    assert_int_equal(send(runner->process.fd, common, sizeof *common, MSG_NOSIGNAL), sizeof *common);
}

/* Takes in what it reports. Returns whether it has ended, in the way it was to. */
static bool runner_step(struct runner *runner) {
    char byte;
    ssize_t n = recv(runner->process.fd, &byte, 1, MSG_DONTWAIT);

    if (n > 0 && ++runner->reports == runner->killed_at)
        assert_int_equal(kill(runner->process.pid, SIGKILL), 0);
    if (n != 0)
        return false;
    int status = test_wait(runner->process.pid);
    runner->process.fd = close_fd(runner->process.fd);
    bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (runner->killed_at > 0 ? !was_killed && status != 0 : status != 0)
        fail_msg("a worker ended with status 0x%x", (unsigned)status);
    return true;
}

static void blow(struct test_daemon *daemon, unsigned processes, unsigned device_processes, uint64_t *state,
                 const struct gpupool_token *common) {
    struct runner runners[AT_A_TIME];
    struct pollfd fds[AT_A_TIME];
    unsigned started = 0, running = 0;

    while (started < processes || running > 0) {
        while (running < AT_A_TIME && started < processes) {
            runner_start(&runners[running++], daemon, state, started < device_processes, started % 2 == 1,
                         common);
            started++;
        }
        for (unsigned i = 0; i < running; i++)
            fds[i] = (struct pollfd){.fd = runners[i].process.fd, .events = POLLIN};
        if (poll(fds, running, (int)(TEST_WAIT_NS / NS_PER_MS)) <= 0)
            fail_msg("nothing moves any more: %u of %u running", running, processes);
        for (unsigned i = running; i-- > 0;)
            if (fds[i].revents != 0 && runner_step(&runners[i]))
                runners[i] = runners[--running];
    }
}

static void a_storm_of_clients_leaves_nothing_behind(void **state) {
    static const char *const environment[] = {"ASAN_OPTIONS=quarantine_size_mb=1:detect_leaks=1", NULL};
    unsigned processes = test_number("GPUPOOL_TEST_STORM_PROCESSES", PROCESSES);
    unsigned device_processes = test_has_device() ? test_number("GPUPOOL_TEST_STORM_DEVICE", processes) : 0;
    uint64_t random = test_number("GPUPOOL_TEST_SEED", DEFAULT_SEED);
    char config[TEST_CONFIG_SIZE];
    struct test_daemon daemon;
    struct gpupool_token common;
    struct puppet bank;

    (void)state;
    print_message("seed %llu, %u processes, %u of them with the device\n", (unsigned long long)random,
                  processes, device_processes);
    daemon_start(&daemon, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                   .environment = environment});
    puppet_connect(&bank, &daemon);
    PUPPET_MUST(&bank, puppet_acquire(&bank, 0, GPUPOOL_POOL_HOST, 64 * KIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&bank, puppet_fill(&bank, 0, 3));
    PUPPET_MUST(&bank, puppet_share(&bank, 0, &common));

    unsigned first = processes < PROCESSES_FIRST ? processes : PROCESSES_FIRST;
    blow(&daemon, first, device_processes < first ? device_processes : first, &random, &common);
    WAIT_UNTIL(daemon_number(&daemon, "sessions") == 1 && daemon_sum(&daemon, "leases") == 1);
    unsigned descriptors = daemon_descriptors_at_rest(&daemon), threads = daemon_threads(&daemon);
    uint64_t segments = daemon_sum(&daemon, "segments"), memory = daemon_private_bytes(&daemon);

    blow(&daemon, processes, device_processes, &random, &common);
    WAIT_UNTIL(daemon_number(&daemon, "sessions") == 1);
    WAIT_UNTIL(daemon_sum(&daemon, "quarantined_bytes") == 0);
    assert_int_equal(daemon_sum(&daemon, "leased_bytes"), 64 * KIB);
    assert_int_equal(daemon_sum(&daemon, "leases"), 1);
    assert_int_equal(daemon_sum(&daemon, "waiters"), 0);
    assert_true(daemon_sum(&daemon, "acquires") > processes); /* there was a storm */
    PUPPET_MUST(&bank, puppet_check(&bank, 0, 3));
    PUPPET_MUST(&bank, puppet_query(&bank, 0));
    assert_int_equal(bank.answer.info.holders, 1);

    /* a segment has a descriptor each: those that the second storm needed more are not lost */
    uint64_t segments_after = daemon_sum(&daemon, "segments");
    unsigned more = segments_after > segments ? (unsigned)(segments_after - segments) * 2 : 0;
    WAIT_UNTIL(daemon_descriptors(&daemon) <= descriptors + more);
    WAIT_UNTIL(daemon_threads(&daemon) <= threads);
    uint64_t memory_after = daemon_private_bytes(&daemon);
    uint64_t most = memory + (test_is_sanitized() ? GROWTH_MAX_SANITIZED_BYTES : GROWTH_MAX_BYTES);
    print_message("the daemon's own memory: %s before, %s after\n", BYTES_TEXT(memory),
                  BYTES_TEXT(memory_after));
    if (memory_after > most)
        fail_msg("the daemon grew");
    PUPPET_MUST(&bank, puppet_release(&bank, 0));
    assert_int_equal(daemon_sum(&daemon, "leased_bytes"), 0);
    puppet_quit(&bank);
    daemon_stop(&daemon);
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"storm", play_storm}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_storm_of_clients_leaves_nothing_behind),
    };
    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
