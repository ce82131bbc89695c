/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The effect of many segments, and of requests that wait for segments, on a bystander. Users fill a device
 * pool of a daemon with small segments and have requests for larger ones wait, which none of them can get.
 * Beside them a well-behaved client acquires and gives back small buffers without a cache: by turns in that
 * daemon, and in another one without other clients.
 *
 *     crowd [--json FILE] [--milliseconds N] [--users N] [--waiting N]
 *           default: 4000 in all, 16 users with 16 requests each; the segments are as many as the pool can
 * have
 *
 * GPUPOOL_SOCKET names the daemon of the crowd, whose device pool has export = vmm, and GPUPOOL_QUIET_SOCKET
 * the other one. Each user is a process with a uid of its own where the program runs as root.
 */
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/statistics.h"
#include "tests/raw_client.h"

#define BUFFER_BYTES  (64 * KIB)
#define SEGMENT_BYTES (2 * MIB)
#define LARGE_BYTES                                                                                          \
    (8 * MIB) /* a user's first buffer, of which the rest comes back: a free range beside a lease */
#define WANTED_BYTES (4 * MIB)
#define USERS_MAX    64u
#define USERS_UID    20000u
#define SAMPLES_MAX  1000000u
#define TURN_NS      (20 * NS_PER_MS)
#define SHORT_NS     (2 * NS_PER_S) /* a user waits so long for its last segment */

static void fail(const char *what) {
    fprintf(stderr, "crowd: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* --- a user of the crowd --- */

static void say(int fd, struct proto_message *message, unsigned operation, uint64_t request) {
    uint8_t packet[PROTO_PACKET_MAX];
    size_t size = raw_client_encode(message, operation, request, packet);
    if (send(fd, packet, size, MSG_NOSIGNAL) != (ssize_t)size)
        exit(1);
}

/* Returns the operation of the next message. The descriptors that come along are closed. */
static unsigned hear(int fd, struct proto_message *message) {
    int fds[PROTO_LEASES_PER_MESSAGE];
    uint8_t packet[PROTO_PACKET_MAX];
    unsigned count;

    ssize_t n = raw_client_receive_fds(fd, packet, 0, fds, &count);
    if (n <= 0 || proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, message, NULL) != 0)
        exit(1);
    while (count > 0)
        close(fds[--count]);
    return message->header.operation;
}

static void opened(int fd, uint64_t segment) {
    struct proto_message message = {.opened.segment = segment};
    say(fd, &message, PROTO_OPENED, 0);
}

static uint32_t find_pool(int fd) {
    struct proto_message message = {0};

    say(fd, &message, PROTO_LIST_POOLS, 2);
    if (hear(fd, &message) != PROTO_POOLS)
        exit(1);
    for (uint32_t i = 0; i < message.pools.count; i++)
        if (message.pools.pools[i].kind == PROTO_POOL_DEVICE)
            return message.pools.pools[i].id;
    exit(1);
}

static void take_large(int fd, uint32_t pool) {
    struct proto_message message = {
        .acquire = {.pool = pool, .size_bytes = LARGE_BYTES, .timeout_ns = NS_FOREVER}};

    say(fd, &message, PROTO_ACQUIRE, 3);
    if (hear(fd, &message) != PROTO_LEASE)
        exit(1);
    const struct proto_lease lease = message.lease;
    opened(fd, lease.segment);
    message.release = (struct proto_release){.lease = lease.lease,
                                             .generation = lease.generation,
                                             .offset_bytes = SEGMENT_BYTES,
                                             .size_bytes = LARGE_BYTES - SEGMENT_BYTES};
    say(fd, &message, PROTO_RELEASE, 0);
}

static void want_segments(int fd, uint32_t pool, uint64_t bytes, uint64_t timeout_ns, uint64_t request) {
    struct proto_message message = {
        .acquire_segments = {.pool = pool, .segment_bytes = bytes, .count = 1, .timeout_ns = timeout_ns}};
    say(fd, &message, PROTO_ACQUIRE_SEGMENTS, request);
}

/* Takes all segments that there are, then has requests wait. Tells how many segments it has. */
static void be_a_user(unsigned n, unsigned waiting, int tell) {
    struct proto_message message;
    uint64_t count = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct stat socket; /* whose group may connect */
    if (geteuid() == 0 && (stat(getenv("GPUPOOL_SOCKET"), &socket) < 0 || setgid(socket.st_gid) < 0 ||
                           setuid(USERS_UID + n) < 0))
        exit(1);
    int fd = raw_client_connect(getenv("GPUPOOL_SOCKET"), SOCK_SEQPACKET, 0);
    if (!raw_client_greet(fd))
        exit(1);
    uint32_t pool = find_pool(fd);
    take_large(fd, pool);
    for (;; count++) {
        want_segments(fd, pool, SEGMENT_BYTES, SHORT_NS, 10 + count);
        if (hear(fd, &message) != PROTO_LEASES)
            break;
        opened(fd, message.leases.leases[0].segment);
    }
    for (unsigned i = 0; i < waiting; i++)
        want_segments(fd, pool, WANTED_BYTES, NS_FOREVER, UINT32_MAX + UINT64_C(1) + i);
    (void)find_pool(fd); /* its answer says that the requests have arrived */
    if (write(tell, &count, sizeof count) != sizeof count)
        exit(1);
    for (;;)
        pause();
}

/* Returns how many segments the users have when all of them wait. */
static uint64_t gather(unsigned users, unsigned waiting, pid_t *ret_pids) {
    uint64_t all = 0, count;
    int tell[2];

    if (pipe(tell) < 0)
        exit(1);
    for (unsigned n = 0; n < users; n++) {
        ret_pids[n] = fork();
        if (ret_pids[n] < 0)
            exit(1);
        if (ret_pids[n] == 0)
            be_a_user(n, waiting, tell[1]);
    }
    close(tell[1]);
    for (unsigned n = 0; n < users; n++, all += count)
        if (read(tell[0], &count, sizeof count) != sizeof count) {
            fprintf(stderr, "crowd: a user cannot fill the pool\n");
            exit(1);
        }
    close(tell[0]);
    return all;
}

/* --- the bystander --- */

struct bystander {
    struct gpupool_client *client;
    struct gpupool_buffer held; /* keeps its segment in use */
    uint32_t pool;
    struct samples samples;
};

static void begin(struct bystander *bystander, const char *name, const char *socket) {
    const struct gpupool_options options = {
        .struct_size = sizeof options, .socket = socket, .flags = GPUPOOL_OPEN_NO_CACHE};

    samples_init(&bystander->samples, name, SAMPLES_MAX);
    if (gpupool_open(&options, &bystander->client) < 0 ||
        gpupool_device_pool(bystander->client, 0, &bystander->pool) < 0 ||
        gpupool_acquire(bystander->client, bystander->pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0,
                        &bystander->held) < 0)
        fail(name);
}

static void take_turn(struct bystander *bystander) {
    uint64_t began_ns = clock_now_ns(), start_ns;

    while ((start_ns = clock_now_ns()) - began_ns < TURN_NS) {
        struct gpupool_buffer buffer;
        if (gpupool_acquire(bystander->client, bystander->pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0,
                            &buffer) < 0 ||
            gpupool_release(bystander->client, &buffer, NULL) < 0)
            fail(bystander->samples.name);
        samples_add(&bystander->samples, clock_now_ns() - start_ns);
    }
}

static void end(struct bystander *bystander) {
    gpupool_release(bystander->client, &bystander->held, NULL);
    gpupool_close(bystander->client);
}

static double ratio(struct bystander both[2], double fraction) {
    return (double)samples_quantile(&both[1].samples, fraction) /
           (double)samples_quantile(&both[0].samples, fraction);
}

static void report(struct bystander both[2], uint64_t segments, const char *json_path) {
    printf("%-26s %8s %10s %10s\n", "a pair beside", "count", "p50", "p99");
    for (unsigned i = 0; i < 2; i++) {
        samples_sort(&both[i].samples);
        printf("%-26s %8zu %10s %10s\n", both[i].samples.name, both[i].samples.count,
               NS_TEXT(samples_quantile(&both[i].samples, 0.5)),
               NS_TEXT(samples_quantile(&both[i].samples, 0.99)));
    }
    printf("%llu segments; p50 / nobody %.2f, p99 / nobody %.2f\n", (unsigned long long)segments,
           ratio(both, 0.5), ratio(both, 0.99));
    FILE *json = json_path != NULL ? fopen(json_path, "we") : NULL;
    if (json == NULL)
        return;
    fprintf(json, "{\n  \"segments\": %llu,\n  \"times\": {\n", (unsigned long long)segments);
    samples_print_json(&both[0].samples, json, 0);
    samples_print_json(&both[1].samples, json, 1);
    fprintf(json, "  }\n}\n");
    fclose(json);
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"json", required_argument, NULL, 'j'},
                                            {"milliseconds", required_argument, NULL, 'm'},
                                            {"users", required_argument, NULL, 'u'},
                                            {"waiting", required_argument, NULL, 'w'},
                                            {0}};
    const char *json_path = NULL, *quiet = getenv("GPUPOOL_QUIET_SOCKET");
    uint64_t duration_ns = 4 * NS_PER_S;
    unsigned long users = 16, waiting = 16;
    struct bystander both[2];
    pid_t pids[USERS_MAX];
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j')
            json_path = optarg;
        else if (option == 'm' && strtoul(optarg, NULL, 10) > 0)
            duration_ns = strtoul(optarg, NULL, 10) * NS_PER_MS;
        else if (option == 'u' && strtoul(optarg, NULL, 10) <= USERS_MAX)
            users = strtoul(optarg, NULL, 10);
        else if (option == 'w')
            waiting = strtoul(optarg, NULL, 10);
        else
            return 2;
    }
    if (quiet == NULL || getenv("GPUPOOL_SOCKET") == NULL) {
        fprintf(stderr, "crowd: GPUPOOL_SOCKET or GPUPOOL_QUIET_SOCKET is not set\n");
        return 2;
    }
    begin(&both[0], "nobody", quiet);
    begin(&both[1], "a crowd", NULL);
    uint64_t segments = gather((unsigned)users, (unsigned)waiting, pids);
    for (unsigned i = 0; i < 2; i++) {
        take_turn(&both[i]);
        both[i].samples.count = 0;
    }
    for (uint64_t ends_ns = clock_now_ns() + duration_ns; clock_now_ns() < ends_ns;) {
        take_turn(&both[0]);
        take_turn(&both[1]);
    }
    report(both, segments, json_path);
    for (unsigned n = 0; n < users; n++) {
        kill(pids[n], SIGKILL);
        waitpid(pids[n], NULL, 0);
    }
    end(&both[0]);
    end(&both[1]);
    return 0;
}
