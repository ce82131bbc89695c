/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of an acquire as the daemon gets more to do: with 1 to N sessions, all of which hold leases of
 * various sizes between gaps of various sizes, M in all. A client without a cache acquires and gives back in
 * a closed loop, each a round trip; the others are quiet meanwhile. They speak the protocol themselves and
 * map nothing, so that one process can be a thousand of them. A round goes from few to many and then drops
 * them all, several times over, so that a noisy machine disturbs all alike; the raw round trip is measured
 * beside.
 *
 *     scale [--json FILE] [--sessions N] [--leases M] [--rounds R] [--pairs P]    default: 1000, 100000, 3,
 * 10000
 *
 * Connects to the daemon that GPUPOOL_SOCKET names, which needs four descriptors a session, and room for 6
 * KiB a lease in its host pool.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "proto/proto.h"
#include "tests/bench/statistics.h"
#include "tests/raw_client.h"

#define PACKET_SIZE  64u
#define BUFFER_BYTES (64 * KIB)
#define STEPS_MAX    8u

static const struct gpupool_options uncached = {.struct_size = sizeof(struct gpupool_options),
                                                .flags = GPUPOOL_OPEN_NO_CACHE};

static void fail(const char *what) {
    fprintf(stderr, "scale: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static void fail_errno(const char *what) {
    fprintf(stderr, "scale: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* --- the quiet sessions */

struct quiet {
    int fd;
    uint64_t last_request;
};

static void quiet_send(struct quiet *quiet, unsigned operation, struct proto_message *message) {
    uint8_t packet[PROTO_PACKET_MAX];
    size_t size =
        raw_client_encode(message, operation, operation == PROTO_OPENED ? 0 : ++quiet->last_request, packet);
    if (send(quiet->fd, packet, size, MSG_NOSIGNAL) != (ssize_t)size)
        fail_errno("sending to the daemon");
}

/* Sends a request and receives its reply in the same message. A segment's descriptor is of no use here. */
static void quiet_ask(struct quiet *quiet, unsigned operation, struct proto_message *message,
                      unsigned wanted) {
    uint8_t packet[PROTO_PACKET_MAX];
    _cleanup_(close_fdp) int fd = -1;
    const char *reason;

    quiet_send(quiet, operation, message);
    ssize_t n = raw_client_receive(quiet->fd, packet, 0, &fd);
    if (n <= 0 || proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, message, &reason) != 0)
        fail_errno("receiving from the daemon");
    if (message->header.operation != wanted) {
        fprintf(stderr, "scale: %s instead of %s: %s\n", proto_operation_name(message->header.operation),
                proto_operation_name(wanted),
                message->header.operation == PROTO_ERROR ? message->failure.text : "");
        exit(1);
    }
    if (fd >= 0) {
        struct proto_message opened = {.opened.segment = message->lease.segment};
        quiet_send(quiet, PROTO_OPENED, &opened);
    }
}

static void quiet_open(struct quiet *quiet, const char *path) {
    struct proto_message message = {.hello = RAW_CLIENT_HELLO};
    quiet->last_request = 0;
    quiet->fd = raw_client_connect(path, SOCK_SEQPACKET, 0);
    if (quiet->fd < 0)
        fail_errno("connecting");
    quiet_ask(quiet, PROTO_HELLO, &message, PROTO_HELLO_REPLY);
}

/* xorshift64*: the same sizes on every machine. */
static uint64_t random_below(uint64_t bound) {
    static uint64_t state = 1;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * UINT64_C(2685821657736338717) % bound;
}

/* Leases of 512 bytes to 8 KiB; every third is given back as soon as the next is there, which leaves gaps. */
static void quiet_hold(struct quiet *quiet, uint32_t pool, unsigned leases) {
    struct proto_release gap = {0};
    for (unsigned i = 0, held = 0; held < leases; i++) {
        struct proto_message message = {
            .acquire = {.pool = pool, .size_bytes = 512 * (1 + random_below(16)), .timeout_ns = UINT64_MAX}};
        quiet_ask(quiet, PROTO_ACQUIRE, &message, PROTO_LEASE);
        struct proto_release lease = {.lease = message.lease.lease, .generation = message.lease.generation};
        if (gap.lease != 0) {
            message.release = gap;
            quiet_ask(quiet, PROTO_RELEASE, &message, PROTO_OK);
            gap.lease = 0;
        }
        if (i % 3 == 0 && held + 1 < leases)
            gap = lease;
        else
            held++;
    }
}

static void quiet_close(struct quiet *quiet) {
    struct proto_message message = {0};
    quiet_ask(quiet, PROTO_BYE, &message, PROTO_OK);
    quiet->fd = close_fd(quiet->fd);
}

/* --- what is measured */

/* Echoes packets, waiting in epoll as the daemon does. */
static int start_echo(void) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        fail_errno("a pair of sockets");
    if (fork() == 0) {
        char packet[PACKET_SIZE];
        int epoll = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = {.events = EPOLLIN};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(sockets[0]);
        if (epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, sockets[1], &event) < 0)
            _exit(1);
        for (;;) {
            if (epoll_wait(epoll, &event, 1, -1) < 0 && errno != EINTR)
                _exit(1);
            ssize_t n = recv(sockets[1], packet, sizeof packet, MSG_DONTWAIT);
            if (n == 0)
                _exit(0);
            if (n > 0 && send(sockets[1], packet, (size_t)n, MSG_NOSIGNAL) != n)
                _exit(1);
        }
    }
    close(sockets[1]);
    return sockets[0];
}

static void measure_raw(int fd, unsigned pairs, struct samples *raw) {
    char packet[PACKET_SIZE] = {0};
    for (unsigned i = 0; i < pairs; i++) {
        uint64_t start_ns = clock_now_ns();
        if (send(fd, packet, sizeof packet, MSG_NOSIGNAL) < 0 || recv(fd, packet, sizeof packet, 0) <= 0)
            fail_errno("the raw round trip");
        samples_add(raw, clock_now_ns() - start_ns);
    }
}

static void measure(struct gpupool_client *client, uint32_t pool, unsigned pairs, struct samples *acquire,
                    struct samples *release) {
    for (unsigned i = 0; i < pairs; i++) {
        struct gpupool_buffer buffer;
        uint64_t start_ns = clock_now_ns();
        if (gpupool_acquire(client, pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0, &buffer) < 0)
            fail("acquire");
        uint64_t middle_ns = clock_now_ns();
        if (gpupool_release(client, &buffer, NULL) < 0)
            fail("release");
        samples_add(release, clock_now_ns() - middle_ns);
        samples_add(acquire, middle_ns - start_ns);
    }
}

/* With so many other sessions, which hold so many leases together. */
struct step {
    unsigned sessions, leases;
    struct samples acquire, release;
};

/* 0, then 10, 100 … sessions and leases in proportion. Returns how many steps. */
static unsigned make_steps(struct step *steps, unsigned sessions, unsigned leases, size_t samples) {
    unsigned count = 1;
    steps[0].sessions = steps[0].leases = 0;
    for (unsigned n = 10; n < sessions && count < STEPS_MAX - 1; n *= 10, count++) {
        steps[count].sessions = n;
        steps[count].leases = (unsigned)((uint64_t)leases * n / sessions);
    }
    steps[count].sessions = sessions;
    steps[count].leases = leases;
    count++;
    for (unsigned i = 0; i < count; i++) {
        samples_init(&steps[i].acquire, "acquire", samples);
        samples_init(&steps[i].release, "release", samples);
    }
    return count;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"json", required_argument, NULL, 'j'},   {"sessions", required_argument, NULL, 's'},
        {"leases", required_argument, NULL, 'l'}, {"rounds", required_argument, NULL, 'r'},
        {"pairs", required_argument, NULL, 'p'},  {0}};
    const char *json_path = NULL;
    unsigned sessions = 1000, leases = 100000, rounds = 3, pairs = 10000;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        unsigned number = option == 'j' ? 0 : (unsigned)strtoul(optarg != NULL ? optarg : "0", NULL, 10);
        if (option == 'j')
            json_path = optarg;
        else if (number == 0)
            return 2;
        else
            *(option == 's'   ? &sessions
              : option == 'l' ? &leases
              : option == 'r' ? &rounds
                              : &pairs) = number;
    }
    struct rlimit files = {0};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }

    struct step steps[STEPS_MAX];
    struct samples raw;
    unsigned count = make_steps(steps, sessions, leases, (size_t)rounds * pairs);
    samples_init(&raw, "raw_round_trip", (size_t)rounds * pairs);
    struct quiet *others = calloc(sessions, sizeof *others);
    struct gpupool_client *client;
    struct gpupool_buffer held; /* keeps its segment open */
    uint32_t pool;
    int echo_fd = start_echo();
    if (others == NULL || gpupool_open(&uncached, &client) < 0 || gpupool_host_pool(client, -1, &pool) < 0 ||
        gpupool_acquire(client, pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0, &held) < 0)
        fail("open");
    for (unsigned round = 0; round < rounds; round++) {
        unsigned open = 0, taken = 0;
        measure_raw(echo_fd, pairs, &raw);
        for (unsigned i = 0; i < count; i++) {
            for (; open < steps[i].sessions; open++) {
                unsigned share = (steps[i].leases - taken) / (steps[i].sessions - open);
                quiet_open(&others[open], gpupool_socket_path(client));
                quiet_hold(&others[open], pool, share);
                taken += share;
            }
            measure(client, pool, pairs / 10 + 1, &(struct samples){0},
                    &(struct samples){0}); /* to get warm */
            measure(client, pool, pairs, &steps[i].acquire, &steps[i].release);
        }
        while (open > 0)
            quiet_close(&others[--open]);
    }

    FILE *json = json_path != NULL ? fopen(json_path, "we") : NULL;
    if (json_path != NULL && json == NULL)
        fail_errno(json_path);
    samples_sort(&raw);
    samples_sort(&steps[0].acquire);
    double one = (double)samples_quantile(&steps[0].acquire, 0.5);
    printf("raw round trip: p50 %s, p99 %s\n", NS_TEXT(samples_quantile(&raw, 0.5)),
           NS_TEXT(samples_quantile(&raw, 0.99)));
    printf("%10s %10s %14s %14s %14s %14s %12s\n", "sessions", "leases", "acquire p50", "p99", "release p50",
           "p99", "p50 / one's");
    if (json != NULL)
        fprintf(json, "{\n  \"raw_round_trip\": {\"p50_ns\": %llu, \"p99_ns\": %llu},\n  \"steps\": [\n",
                (unsigned long long)samples_quantile(&raw, 0.5),
                (unsigned long long)samples_quantile(&raw, 0.99));
    for (unsigned i = 0; i < count; i++) {
        struct step *step = &steps[i];
        samples_sort(&step->acquire);
        samples_sort(&step->release);
        uint64_t acquire_p50 = samples_quantile(&step->acquire, 0.5),
                 acquire_p99 = samples_quantile(&step->acquire, 0.99),
                 release_p50 = samples_quantile(&step->release, 0.5),
                 release_p99 = samples_quantile(&step->release, 0.99);
        printf("%10u %10u %14s %14s %14s %14s %12.2f\n", step->sessions + 1, step->leases + 1,
               NS_TEXT(acquire_p50), NS_TEXT(acquire_p99), NS_TEXT(release_p50), NS_TEXT(release_p99),
               (double)acquire_p50 / one);
        if (json != NULL)
            fprintf(
                json,
                "    {\"sessions\": %u, \"leases\": %u, \"acquire\": {\"p50_ns\": %llu, \"p99_ns\": %llu}, "
                "\"release\": {\"p50_ns\": %llu, \"p99_ns\": %llu}}%s\n",
                step->sessions + 1, step->leases + 1, (unsigned long long)acquire_p50,
                (unsigned long long)acquire_p99, (unsigned long long)release_p50,
                (unsigned long long)release_p99, i + 1 < count ? "," : "");
        free(step->acquire.ns);
        free(step->release.ns);
    }
    if (json != NULL) {
        fprintf(json, "  ]\n}\n");
        fclose(json);
    }
    gpupool_release(client, &held, NULL);
    gpupool_close(client);
    free(others);
    free(raw.ns);
    close(echo_fd);
    wait(NULL);
    return 0;
}
