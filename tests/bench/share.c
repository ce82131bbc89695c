/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a buffer takes to another process and an answer back: the writer enqueues a write, shares the
 * buffer behind it, and sends the token over a socket; the reader attaches it, enqueues a read, releases it
 * and answers. No call waits for the GPU, and before each turn both wait until it is idle: two processes
 * share a GPU by time slices of a millisecond, so turns that followed on each other would soon have to wait
 * for memory that the GPU still uses. Measured in turns:
 *
 *     same    the same buffer each time, which was shared before
 *     new     a buffer that was just acquired
 *     reuse   the writer's call before it writes again, behind the reader's read: not a part of "same"
 *     socket  as many bytes over the socket, and the answer
 *
 *     share [--json FILE] [--size SIZE] [--rounds N]        default: 1MiB, 2000
 *
 * Connects to the daemon that GPUPOOL_SOCKET names.
 */
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/statistics.h"

#define WARM_ROUNDS 100u

static struct {
    FILE *json;
    uint64_t size_bytes;
    unsigned rounds;
} options = {.size_bytes = MIB, .rounds = 2000};

/* A process's client, its device pool and a stream. */
struct side {
    struct gpupool_client *client;
    uint32_t pool;
    void *stream;
};

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "share: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static struct side side_open(void) {
    struct side side;

    if (gpupool_open(NULL, &side.client) < 0 || gpupool_device_pool(side.client, 0, &side.pool) < 0 ||
        gpupool_stream_create(side.client, 0, &side.stream) < 0)
        fail("open");
    return side;
}

static void side_close(struct side *side) {
    if (gpupool_stream_synchronize(side->client, 0, side->stream) < 0 ||
        gpupool_trim(side->client, NULL) < 0 || gpupool_stream_destroy(side->client, 0, side->stream) < 0)
        fail("the stream");
    gpupool_close(side->client);
}

/* The writer's message: a token, or nothing but its bytes, or the wish that the reader's GPU work be done. */
struct message {
    struct gpupool_token token;
    bool is_token, is_to_settle;
};

/* The reader's process. Ends with the writer's end of the socket. */
static void serve(int fd) {
    struct side side = side_open();
    struct gpupool_buffer seen, buffer;
    struct message message;

    if (gpupool_acquire(side.client, side.pool, 4096, side.stream, GPUPOOL_FOREVER, 0, &seen) < 0)
        fail("the reader's buffer");
    while (recv(fd, &message, sizeof message, 0) == (ssize_t)sizeof message) {
        if (message.is_token &&
            (gpupool_attach(side.client, &message.token, side.stream, 0, &buffer) < 0 ||
             gpupool_copy(side.client, 0, seen.data, buffer.data, 4096, side.stream) < 0 ||
             gpupool_release(side.client, &buffer, side.stream) < 0))
            fail("the reader");
        if (message.is_to_settle && gpupool_stream_synchronize(side.client, 0, side.stream) < 0)
            fail("the reader's stream");
        if (send(fd, "", 1, MSG_NOSIGNAL) != 1)
            break;
    }
    if (gpupool_release(side.client, &seen, side.stream) < 0)
        fail("the reader's end");
    side_close(&side);
}

/* Sends a message and waits for its answer. */
static void exchange(int fd, const struct message *message) {
    char answer;

    if (send(fd, message, sizeof *message, MSG_NOSIGNAL) != (ssize_t)sizeof *message ||
        recv(fd, &answer, 1, 0) != 1) {
        fprintf(stderr, "share: the reader has ended\n");
        exit(1);
    }
}

static void write_and_share(const struct side *side, const struct gpupool_buffer *buffer,
                            struct message *message) {
    message->is_token = true;
    if (gpupool_set(side->client, 0, buffer->data, 1, 4096, side->stream) < 0 ||
        gpupool_share(side->client, buffer, side->stream, &message->token) < 0)
        fail("share");
}

/* Waits until the GPU work of both is done. */
static void settle(const struct side *side, int fd) {
    const struct message message = {.is_to_settle = true};

    exchange(fd, &message);
    if (gpupool_stream_synchronize(side->client, 0, side->stream) < 0)
        fail("the stream");
}

static uint64_t time_socket(int fd) {
    struct message message = {0};
    uint64_t start_ns = clock_now_ns();

    exchange(fd, &message);
    return clock_now_ns() - start_ns;
}

/* Orders the next write behind the reader's read. */
static uint64_t time_reuse(const struct side *side, const struct gpupool_buffer *buffer) {
    uint64_t start_ns = clock_now_ns();

    if (gpupool_reuse(side->client, buffer, side->stream) < 0)
        fail("reuse");
    return clock_now_ns() - start_ns;
}

/* The write itself is the program's, and not timed: it costs as much without the pool. */
static uint64_t time_same(const struct side *side, const struct gpupool_buffer *buffer, int fd) {
    struct message message = {.is_token = true};

    if (gpupool_set(side->client, 0, buffer->data, 1, 4096, side->stream) < 0)
        fail("a write");
    uint64_t written_ns = clock_now_ns();
    if (gpupool_share(side->client, buffer, side->stream, &message.token) < 0)
        fail("share");
    exchange(fd, &message);
    return clock_now_ns() - written_ns;
}

static uint64_t time_new(const struct side *side, int fd) {
    struct message message = {.is_token = true};
    struct gpupool_buffer buffer;

    uint64_t start_ns = clock_now_ns();
    if (gpupool_acquire(side->client, side->pool, options.size_bytes, side->stream, GPUPOOL_FOREVER, 0,
                        &buffer) < 0)
        fail("a buffer");
    uint64_t acquired_ns = clock_now_ns();
    if (gpupool_set(side->client, 0, buffer.data, 1, 4096, side->stream) < 0)
        fail("a write");
    uint64_t written_ns = clock_now_ns();
    if (gpupool_share(side->client, &buffer, side->stream, &message.token) < 0)
        fail("share");
    exchange(fd, &message);
    uint64_t took_ns = clock_now_ns() - written_ns + (acquired_ns - start_ns);
    if (gpupool_release(side->client, &buffer, side->stream) < 0)
        fail("release");
    return took_ns;
}

static void measure(int fd, struct samples samples[static 4]) {
    struct side side = side_open();
    struct gpupool_buffer buffer;
    struct message message;

    if (gpupool_acquire(side.client, side.pool, options.size_bytes, side.stream, GPUPOOL_FOREVER, 0,
                        &buffer) < 0)
        fail("a buffer");
    write_and_share(&side, &buffer, &message);
    exchange(fd, &message);
    for (unsigned i = 0; i < WARM_ROUNDS + options.rounds; i++) {
        uint64_t times[4] = {time_socket(fd)};
        settle(&side, fd);
        times[2] = time_reuse(&side, &buffer);
        times[1] = time_same(&side, &buffer, fd);
        settle(&side, fd);
        times[3] = time_new(&side, fd);
        for (unsigned k = 0; k < 4 && i >= WARM_ROUNDS; k++)
            samples_add(&samples[k], times[k]);
    }
    if (gpupool_release(side.client, &buffer, side.stream) < 0)
        fail("release");
    side_close(&side);
}

static _Noreturn void usage(void) {
    fprintf(stderr, "usage: share [--json FILE] [--size SIZE] [--rounds N]\n");
    exit(2);
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {{"json", required_argument, NULL, 'j'},
                                          {"size", required_argument, NULL, 's'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'j' && (options.json = fopen(optarg, "we")) != NULL)
            continue;
        if (option == 's' && units_parse_bytes(optarg, &options.size_bytes) == 0)
            continue;
        if (option == 'r' && (options.rounds = (unsigned)strtoul(optarg, NULL, 10)) > 0)
            continue;
        usage();
    }
    if (optind != argc || options.size_bytes < 4096)
        usage();
}

int main(int argc, char **argv) {
    static const char *const names[] = {"socket", "same", "reuse", "new"};
    struct samples samples[4];
    int fds[2], status;

    parse(argc, argv);
    for (unsigned k = 0; k < 4; k++)
        samples_init(&samples[k], names[k], options.rounds);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) {
        perror("share: socketpair");
        return 1;
    }
    pid_t reader = fork(); /* before anything of CUDA is there */
    if (reader == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        serve(fds[1]);
        return 0;
    }
    close(fds[1]);
    measure(fds[0], samples);
    close(fds[0]);
    if (waitpid(reader, &status, 0) != reader || status != 0) {
        fprintf(stderr, "share: the reader failed\n");
        return 1;
    }
    for (unsigned k = 0; k < 4; k++) {
        samples_sort(&samples[k]);
        printf("%-10s %s, p99 %s\n", names[k], NS_TEXT(samples_quantile(&samples[k], 0.5)),
               NS_TEXT(samples_quantile(&samples[k], 0.99)));
    }
    if (options.json != NULL) {
        fprintf(options.json, "{\"size_bytes\": %llu, \"times\": {\n",
                (unsigned long long)options.size_bytes);
        for (unsigned k = 0; k < 4; k++)
            samples_print_json(&samples[k], options.json, k == 3);
        fprintf(options.json, "}}\n");
        fclose(options.json);
    }
    return 0;
}
