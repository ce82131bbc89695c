/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels between two processes, beside a bare socket, in one run: the turn of a frame there and back by two channels,
 * with both sides awake and asleep, of host frames and of device frames in stream order; and how many frames a second
 * pass one way. The socket is a SEQPACKET Unix socket with packets of 64 bytes and a peer that waits in epoll. All are
 * measured alternately, in batches, so that a noisy machine disturbs all alike.
 *
 *     channel_turns [--rounds N] [--batch N] [--frames N]
 *
 * Connects to the daemon that GPUPOOL_SOCKET names. Prints a line for each: name, median, 95th percentile, least.
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
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/channel.h>

#include "base/clock.h"

#define PACKET_SIZE 64u
#define SLOT_BYTES  4096u
#define SLOTS       64u
#define ROUNDS_MAX  1000u

static unsigned rounds = 21, batch = 500, n_frames = 100000;

static void fail(const char *what) {
    fprintf(stderr, "channel_turns (pid %d): %s: %s\n", (int)getpid(), what, gpupool_error_text());
    exit(1);
}

#define MUST(call)                                                                                           \
    do {                                                                                                     \
        if ((call) < 0)                                                                                      \
            fail(#call);                                                                                     \
    } while (0)

/* The measurements. */
enum way {
    SOCKET_TURN,
    HOST_AWAKE,
    HOST_ASLEEP,
    DEVICE_AWAKE,
    DEVICE_ASLEEP,
    HOST_FRAMES,
    DEVICE_FRAMES,
    WAYS
};
static const char *const way_names[WAYS] = {"socket, a turn",
                                            "host frame, a turn, awake",
                                            "host frame, a turn, asleep",
                                            "device frame in stream order, a turn, awake",
                                            "device frame in stream order, a turn, asleep",
                                            "host frames, each",
                                            "device frames in stream order, each"};

static bool is_of_device(enum way way) {
    return way == DEVICE_AWAKE || way == DEVICE_ASLEEP || way == DEVICE_FRAMES;
}

static bool is_awake(enum way way) {
    return way == HOST_AWAKE || way == DEVICE_AWAKE || way == HOST_FRAMES || way == DEVICE_FRAMES;
}

/* One side: its places in the channels there and back, of host and of device memory. */
struct side {
    struct gpupool_client *client;
    struct gpupool_channel *to[2], *from[2]; /* by is_of_device() */
    void *stream;
    int socket, epoll;
};

static void receive(struct gpupool_channel *channel, enum way way, void *stream,
                    struct gpupool_frame *ret_frame) {
    int r;

    do
        r = gpupool_channel_receive(channel, stream, is_awake(way) ? GPUPOOL_NOW : GPUPOOL_FOREVER,
                                    ret_frame);
    while (r == GPUPOOL_E_TIMED_OUT);
    MUST(r);
}

static void loan(struct gpupool_channel *channel, enum way way, void *stream,
                 struct gpupool_frame *ret_frame) {
    int r;

    do
        r = gpupool_channel_loan(channel, stream, is_awake(way) ? GPUPOOL_NOW : GPUPOOL_FOREVER, ret_frame);
    while (r == GPUPOOL_E_EXHAUSTED);
    MUST(r);
}

static void send_one(struct side *side, enum way way) {
    struct gpupool_channel *channel = side->to[is_of_device(way)];
    void *stream = is_of_device(way) ? side->stream : GPUPOOL_NO_STREAM;
    struct gpupool_frame frame;

    loan(channel, way, stream, &frame);
    MUST(gpupool_channel_send(channel, &frame, 64, NULL, 0, stream));
}

/* A stage of a pipeline: the frame that it receives is released behind the work that makes the next one of it. */
static void pass_on(struct side *side, enum way way) {
    bool of_device = is_of_device(way);
    void *stream = of_device ? side->stream : GPUPOOL_NO_STREAM;
    struct gpupool_frame in, out;

    receive(side->from[of_device], way, stream, &in);
    loan(side->to[of_device], way, stream, &out);
    MUST(gpupool_channel_send(side->to[of_device], &out, 64, NULL, 0, stream));
    MUST(gpupool_channel_release(side->from[of_device], &in, stream));
}

static void receive_one(struct side *side, enum way way) {
    struct gpupool_channel *channel = side->from[is_of_device(way)];
    void *stream = is_of_device(way) ? side->stream : GPUPOOL_NO_STREAM;
    struct gpupool_frame frame;

    receive(channel, way, stream, &frame);
    MUST(gpupool_channel_release(channel, &frame, stream));
}

static void socket_wait(struct side *side) {
    char packet[PACKET_SIZE];
    struct epoll_event event;

    while (epoll_wait(side->epoll, &event, 1, -1) < 0)
        if (errno != EINTR)
            fail("epoll_wait");
    if (recv(side->socket, packet, sizeof packet, 0) != sizeof packet)
        fail("recv");
}

static void socket_send(struct side *side) {
    char packet[PACKET_SIZE] = {0};

    if (send(side->socket, packet, sizeof packet, 0) != sizeof packet)
        fail("send");
}

/* Of the peer: as many turns or frames as the other side makes. */
static void answer(struct side *side, enum way way) {
    bool one_way = way == HOST_FRAMES || way == DEVICE_FRAMES;
    unsigned n = one_way ? n_frames : batch;

    for (unsigned i = 0; i < n; i++) {
        if (way == SOCKET_TURN) {
            socket_wait(side);
            socket_send(side);
            continue;
        }
        if (one_way)
            receive_one(side, way);
        else
            pass_on(side, way);
    }
    if (one_way) /* the last one was there */
        send_one(side, way);
}

/* Nanoseconds for each. */
static double ask(struct side *side, enum way way) {
    bool one_way = way == HOST_FRAMES || way == DEVICE_FRAMES;
    unsigned n = one_way ? n_frames : batch;
    uint64_t begin_ns = clock_now_ns();

    for (unsigned i = 0; i < n; i++) {
        if (way == SOCKET_TURN) {
            socket_send(side);
            socket_wait(side);
            continue;
        }
        send_one(side, way);
        if (!one_way)
            receive_one(side, way);
    }
    if (one_way)
        receive_one(side, way);
    return (double)(clock_now_ns() - begin_ns) / n;
}

static uint32_t pool_of(struct gpupool_client *client, bool of_device) {
    uint32_t pool;

    MUST(of_device ? gpupool_device_pool(client, 0, &pool) : gpupool_host_pool(client, -1, &pool));
    return pool;
}

static const char *channel_name(bool of_device, bool back, char name[static 64]) {
    snprintf(name, 64, "turns/%d/%s/%s", (int)getpgrp(), of_device ? "device" : "host",
             back ? "back" : "there");
    return name;
}

static void make_channels(struct gpupool_client *client, bool has_gpu) {
    char name[64];

    for (int of_device = 0; of_device < 1 + has_gpu; of_device++)
        for (int back = 0; back < 2; back++) {
            struct gpupool_channel_options options = GPUPOOL_CHANNEL_OPTIONS_INIT;
            options.pool = pool_of(client, of_device);
            options.slot_bytes = SLOT_BYTES;
            options.slots = SLOTS;
            MUST(gpupool_channel_make(client, channel_name(of_device, back, name), &options));
        }
}

static void join(struct side *side, bool has_gpu, bool is_peer) {
    char name[64];

    for (int of_device = 0; of_device < 1 + has_gpu; of_device++) {
        MUST(gpupool_channel_join(side->client, channel_name(of_device, is_peer, name),
                                  GPUPOOL_CHANNEL_PRODUCER, GPUPOOL_FOREVER, &side->to[of_device]));
        MUST(gpupool_channel_join(side->client, channel_name(of_device, !is_peer, name), 1, GPUPOOL_FOREVER,
                                  &side->from[of_device]));
    }
    if (has_gpu)
        MUST(gpupool_stream_create(side->client, 0, &side->stream));
    struct epoll_event event = {.events = EPOLLIN};
    side->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (side->epoll < 0 || epoll_ctl(side->epoll, EPOLL_CTL_ADD, side->socket, &event) < 0)
        fail("epoll");
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* A process of its own, which is executed anew: a forked child has no client. */
static void run_peer(int fd) {
    struct side side = {.socket = fd};
    enum way way;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    MUST(gpupool_open(NULL, &side.client));
    join(&side, gpupool_gpu_kind(side.client) != GPUPOOL_GPU_NONE, true);
    if (send(fd, "", 1, 0) != 1)
        fail("send");
    while (recv(fd, &way, sizeof way, 0) == sizeof way)
        answer(&side, way);
    gpupool_close(side.client);
    exit(0);
}

static pid_t start_peer(int *ret_fd, char **argv) {
    int fds[2];
    char number[16];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) < 0)
        fail("socketpair");
    pid_t pid = fork();
    if (pid < 0)
        fail("fork");
    if (pid == 0) {
        char text[4][16];
        snprintf(number, sizeof number, "%d", fds[1]);
        snprintf(text[0], sizeof text[0], "%u", batch);
        snprintf(text[1], sizeof text[1], "%u", n_frames);
        close(fds[0]);
        execl("/proc/self/exe", argv[0], "--peer", number, "--batch", text[0], "--frames", text[1],
              (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    *ret_fd = fds[0];
    return pid;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"rounds", 1, NULL, 'r'},
                                            {"batch", 1, NULL, 'b'},
                                            {"frames", 1, NULL, 'f'},
                                            {"peer", 1, NULL, 'p'},
                                            {NULL, 0, NULL, 0}};
    static double times[WAYS][ROUNDS_MAX];
    struct side side = {0};
    int option, peer_fd = -1;
    char ready;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        unsigned long number = optarg != NULL ? strtoul(optarg, NULL, 10) : 0;
        if (option == 'r' && number > 0 && number <= ROUNDS_MAX)
            rounds = (unsigned)number;
        else if (option == 'b' && number > 0)
            batch = (unsigned)number;
        else if (option == 'f' && number > 0)
            n_frames = (unsigned)number;
        else if (option == 'p')
            peer_fd = (int)number;
        else
            return fprintf(stderr, "usage: channel_turns [--rounds N] [--batch N] [--frames N]\n"), 2;
    }
    if (peer_fd >= 0)
        run_peer(peer_fd);
    setpgid(0, 0);
    MUST(gpupool_open(NULL, &side.client));
    bool has_gpu = gpupool_gpu_kind(side.client) != GPUPOOL_GPU_NONE;
    make_channels(side.client, has_gpu);
    pid_t peer = start_peer(&side.socket, argv);
    join(&side, has_gpu, false);
    if (recv(side.socket, &ready, 1, 0) != 1)
        fail("the peer");
    for (unsigned round = 0; round <= rounds; round++) /* the first is not counted */
        for (enum way way = 0; way < WAYS; way++) {
            if (is_of_device(way) && !has_gpu)
                continue;
            if (send(side.socket, &way, sizeof way, 0) != sizeof way)
                fail("send");
            double each_ns = ask(&side, way);
            if (round > 0)
                times[way][round - 1] = each_ns;
        }
    double socket_ns = 0;
    for (enum way way = 0; way < WAYS; way++) {
        if (is_of_device(way) && !has_gpu)
            continue;
        qsort(times[way], rounds, sizeof *times[way], compare);
        double median = times[way][rounds / 2];
        socket_ns = way == SOCKET_TURN ? median : socket_ns;
        printf("%-46s median %9.1f ns  95%% %9.1f  least %9.1f  / socket's turn %.3f  a second %.0f\n",
               way_names[way], median, times[way][rounds * 95 / 100], times[way][0], median / socket_ns,
               1e9 / median);
    }
    shutdown(side.socket, SHUT_WR);
    for (int of_device = 0; of_device < 1 + has_gpu; of_device++) {
        MUST(gpupool_channel_leave(side.to[of_device]));
        MUST(gpupool_channel_leave(side.from[of_device]));
    }
    gpupool_close(side.client);
    int status;
    return waitpid(peer, &status, 0) == peer && status == 0 ? 0 : 1;
}
