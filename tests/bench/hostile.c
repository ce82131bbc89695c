/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a well-behaved client notices of hostile ones. It acquires and gives back small host buffers without a
 * cache, each a round trip to the daemon: in quiet, then beside each attack, and in quiet again. An attack is
 * a process of its own that goes on until it is killed.
 *
 *     hostile [--json FILE] [--milliseconds N]        default: 2000 for each
 *
 * Connects to the daemon that GPUPOOL_SOCKET names.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
#include "tests/send_fds.h"

#define BUFFER_BYTES (64 * KIB)
#define SAMPLES_MAX  1000000u
#define SOCKETS      16u
#define SOCKETS_MANY 1000u /* below the daemon's limit of sessions */
#define RIGHTS       64u
/* Daemon, client and attacker are busy all the time, and the machine has something of its own to do. */
#define PROCESSORS_MIN 4

static const struct gpupool_options uncached = {.struct_size = sizeof(struct gpupool_options),
                                                .flags = GPUPOOL_OPEN_NO_CACHE};

static void fail(const char *what) {
    fprintf(stderr, "hostile: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* --- the attackers' side of the protocol --- */

/* Returns -1 where the daemon does not let it in. */
static int connected(void) {
    return raw_client_connect(getenv("GPUPOOL_SOCKET"), SOCK_SEQPACKET, 0);
}

static int greeted(void) {
    int fd = connected();
    return fd >= 0 && raw_client_greet(fd) ? fd : close_fd(fd);
}

/* Sends without waiting; connects anew when the daemon has ended the connection. */
static void push(int *fd, const uint8_t *packet, size_t size) {
    if (*fd >= 0 && send(*fd, packet, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) {
        close(*fd);
        *fd = -1;
    }
    if (*fd < 0)
        *fd = greeted();
}

static void drain(int fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    while (fd >= 0 && recv(fd, packet, sizeof packet, MSG_DONTWAIT) > 0) {
    }
}

/* What is asked for, the n-th time: nothing that could be had. */
static void fill(struct proto_message *message, unsigned operation, uint64_t n) {
    *message = (struct proto_message){0};
    if (operation == PROTO_ACQUIRE)
        message->acquire = (struct proto_acquire){.pool = 1, .size_bytes = PROTO_SIZE_MAX};
    else if (operation == PROTO_RELEASE) /* the other's leases are among these */
        message->release = (struct proto_release){.lease = n % 4096, .generation = n / 4096 % 16};
    else if (operation == PROTO_ATTACH)
        for (size_t i = 0; i < sizeof message->attach.bytes; i++)
            message->attach.bytes[i] = (uint8_t)rand();
}

static void flood_of(bool reads, unsigned operation, unsigned sockets) {
    static int fds[SOCKETS_MANY];
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    struct rlimit many = {4096, 4096};

    setrlimit(RLIMIT_NOFILE, &many);
    for (unsigned i = 0; i < sockets; i++)
        fds[i] = greeted();
    for (uint64_t n = 2;; n++) {
        fill(&message, operation, n);
        size_t size = raw_client_encode(&message, operation, n, packet);
        for (unsigned i = 0; i < sockets; i++) {
            push(&fds[i], packet, size);
            if (reads)
                drain(fds[i]);
        }
    }
}

static void flood_questions(void) {
    flood_of(true, PROTO_LIST_POOLS, SOCKETS);
}

static void flood_from_many(void) {
    flood_of(true, PROTO_LIST_POOLS, SOCKETS_MANY);
}

static void flood_refusals(void) {
    flood_of(true, PROTO_ACQUIRE, SOCKETS);
}

static void release_what_others_have(void) {
    flood_of(true, PROTO_RELEASE, SOCKETS);
}

static void guess_tokens(void) {
    flood_of(true, PROTO_ATTACH, SOCKETS);
}

static void never_read(void) {
    flood_of(false, PROTO_LIST_POOLS, SOCKETS);
}

static void connect_and_leave(void) {
    for (;;) {
        int fd = greeted();
        if (fd >= 0)
            close(fd);
    }
}

static void connect_and_say_nothing(void) {
    struct rlimit many = {4096, 4096};
    int fds[400] = {0};

    setrlimit(RLIMIT_NOFILE, &many);
    for (unsigned i = 0;; i = (i + 1) % 400) {
        if (fds[i] > 0)
            close(fds[i]);
        fds[i] = connected();
    }
}

static void send_garbage(void) {
    uint8_t packet[64];
    memset(packet, 0x5a, sizeof packet);
    for (;;) {
        int fd = greeted();
        if (fd < 0)
            continue;
        (void)send(fd, packet, sizeof packet, MSG_NOSIGNAL);
        close(fd);
    }
}

static void attach_descriptors(void) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message = {0};
    int fd = greeted(), fds[RIGHTS];

    for (uint64_t n = 2;; n++) {
        size_t size = raw_client_encode(&message, PROTO_LIST_POOLS, n, packet);
        for (unsigned i = 0; i < RIGHTS; i++)
            fds[i] = fd;
        if (fd < 0 || send_with_fds(fd, packet, size, fds, RIGHTS, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            push(&fd, packet, size);
        drain(fd);
    }
}

static const struct attack {
    const char *name;
    void (*run)(void);
} attacks[] = {
    {"questions", flood_questions},
    {"questions_of_1000_sessions", flood_from_many},
    {"refused_acquires", flood_refusals},
    {"releases_of_others", release_what_others_have},
    {"tokens_guessed", guess_tokens},
    {"replies_never_read", never_read},
    {"connect_and_leave", connect_and_leave},
    {"connect_and_say_nothing", connect_and_say_nothing},
    {"garbage", send_garbage},
    {"descriptors_attached", attach_descriptors},
};
#define ATTACKS (sizeof attacks / sizeof *attacks)

/* --- the well-behaved client --- */

static void measure(struct gpupool_client *client, uint32_t pool, uint64_t duration_ns,
                    struct samples *samples) {
    uint64_t began_ns = clock_now_ns();
    for (;;) {
        struct gpupool_buffer buffer;
        uint64_t start_ns = clock_now_ns();
        if (start_ns - began_ns >= duration_ns)
            return;
        if (gpupool_acquire(client, pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0, &buffer) < 0)
            fail("acquire");
        samples_add(samples, clock_now_ns() - start_ns);
        if (gpupool_release(client, &buffer, NULL) < 0)
            fail("release");
    }
}

static void measure_beside(struct gpupool_client *client, uint32_t pool, uint64_t duration_ns,
                           const struct attack *attack, struct samples *samples) {
    pid_t pid = fork();
    if (pid < 0)
        exit(1);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        attack->run();
        _exit(1);
    }
    measure(client, pool, duration_ns / 4, samples); /* until it is at its height */
    samples->count = 0;
    measure(client, pool, duration_ns, samples);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"json", required_argument, NULL, 'j'}, {"milliseconds", required_argument, NULL, 'm'}, {0}};
    const char *json_path = NULL;
    uint64_t duration_ns = 2 * NS_PER_S;
    struct samples all[ATTACKS + 2];
    struct gpupool_client *client;
    struct gpupool_buffer held;
    uint32_t pool = 0;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'j')
            json_path = optarg;
        else if (option == 'm' && strtoul(optarg, NULL, 10) > 0)
            duration_ns = strtoul(optarg, NULL, 10) * NS_PER_MS;
        else
            return 2;
    }
    if (getenv("GPUPOOL_SOCKET") == NULL) {
        fprintf(stderr, "hostile: GPUPOOL_SOCKET is not set\n");
        return 2;
    }
    if (gpupool_open(&uncached, &client) < 0 || gpupool_host_pool(client, -1, &pool) < 0 ||
        gpupool_acquire(client, pool, BUFFER_BYTES, NULL, GPUPOOL_FOREVER, 0, &held) < 0)
        fail("the first buffer");
    for (unsigned i = 0; i < ATTACKS + 2; i++)
        samples_init(&all[i],
                     i == 0         ? "quiet"
                     : i <= ATTACKS ? attacks[i - 1].name
                                    : "quiet_again",
                     SAMPLES_MAX);
    measure(client, pool, duration_ns / 4, &all[0]);
    all[0].count = 0;
    measure(client, pool, duration_ns, &all[0]);
    for (unsigned i = 0; i < ATTACKS; i++)
        measure_beside(client, pool, duration_ns, &attacks[i], &all[1 + i]);
    measure(client, pool, duration_ns, &all[ATTACKS + 1]);

    FILE *json = json_path != NULL ? fopen(json_path, "we") : NULL;
    if (json != NULL)
        fprintf(json, "{\n  \"times\": {\n");
    if (sysconf(_SC_NPROCESSORS_ONLN) < PROCESSORS_MIN)
        printf(
            "%ld processors for daemon, client and attacker: what they wait for each other is in the times\n",
            sysconf(_SC_NPROCESSORS_ONLN));
    printf("%-26s %8s %10s %10s %12s\n", "acquire beside", "count", "p50", "p99", "p99 / quiet");
    for (unsigned i = 0; i < ATTACKS + 2; i++) {
        samples_sort(&all[i]);
        uint64_t p50 = samples_quantile(&all[i], 0.5), p99 = samples_quantile(&all[i], 0.99);
        printf("%-26s %8zu %10s %10s %12.2f\n", all[i].name, all[i].count, NS_TEXT(p50), NS_TEXT(p99),
               (double)p99 / (double)samples_quantile(&all[0], 0.99));
        if (json != NULL)
            samples_print_json(&all[i], json, i == ATTACKS + 1);
    }
    if (json != NULL) {
        fprintf(json, "  }\n}\n");
        fclose(json);
    }
    gpupool_release(client, &held, NULL);
    gpupool_close(client);
    return 0;
}
