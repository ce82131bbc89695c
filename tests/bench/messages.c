/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory messages between processes need, and how many go through. The sender acquires a buffer,
 * sends it, and gives its own back; the taker attaches it and gives it back. The sizes are drawn anew for
 * each message, and so many messages are on their way at a time, sent and not taken yet.
 *
 *     messages [--json FILE] [--messages N] [--flight N] [--wander] [--sizes log|uniform] [--least SIZE]
 *              [--most SIZE] [--pool device|host] [--apart] [--stream] [--no-cache] [--each N] [--seed N]
 *
 * --flight N   so many are on their way (default 0); --wander: 0 to N, drawn anew every 500 messages
 * --sizes      of --least to --most (1KiB to 16MiB): each as often as another, or (log, the default) each
 *              doubling as often
 * --apart      the taker is another process; else the same client
 * --stream     buffers are used on the default stream; else on none
 * --no-cache   clients without a cache, to compare with
 * --each N     each N-th buffer is sent; the others take the place of one of 64 that the sender keeps
 *
 * Prints what was live at the peak, what the pool has reserved then, and messages a second. Connects to the
 * daemon that GPUPOOL_SOCKET names; its pool is to be fresh.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
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

#define FLIGHT_MAX    4096u
#define WANDER_ROUNDS 500u
#define OWN_BUFFERS   64u
#define LIFETIME_NS   (3600 * NS_PER_S)

static struct {
    FILE *json;
    unsigned messages, flight, each;
    uint64_t least_bytes, most_bytes, seed;
    bool wanders, is_uniform, is_host, is_apart, has_no_cache;
    void *stream;
} options = {.messages = 200000,
             .each = 1,
             .least_bytes = KIB,
             .most_bytes = 16 * MIB,
             .seed = 1,
             .stream = GPUPOOL_NO_STREAM};

/* A process's client and its pool. */
struct side {
    struct gpupool_client *client;
    uint32_t pool;
};

struct message {
    struct gpupool_token token;
    uint64_t size_bytes;
};

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "messages: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* SplitMix64 (Steele et al., 2014). */
static uint64_t draw(void) {
    uint64_t z = options.seed += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t draw_size(void) {
    double part = (double)(draw() >> 11) / (double)(UINT64_C(1) << 53);
    double least = (double)options.least_bytes, most = (double)options.most_bytes;

    return (uint64_t)(options.is_uniform ? least + part * (most - least)
                                         : exp(log(least) + part * (log(most) - log(least))));
}

static struct side side_open(void) {
    const struct gpupool_options how = {.struct_size = sizeof how,
                                        .flags = options.has_no_cache ? GPUPOOL_OPEN_NO_CACHE : 0};
    struct side side;

    if (gpupool_open(&how, &side.client) < 0 ||
        (options.is_host ? gpupool_host_pool(side.client, -1, &side.pool)
                         : gpupool_device_pool(side.client, 0, &side.pool)) < 0)
        fail("open");
    return side;
}

static struct gpupool_pool pool_of(const struct side *side) {
    struct gpupool_pool pools[64];
    size_t count = 0;

    if (gpupool_pools(side->client, pools, 64, &count) < 0)
        fail("the pools");
    for (size_t i = 0; i < count && i < 64; i++)
        if (pools[i].id == side->pool)
            return pools[i];
    fail("the pool is gone");
}

static void take(const struct side *side, const struct gpupool_token *token) {
    struct gpupool_buffer buffer;

    if (gpupool_attach(side->client, token, options.stream, 0, &buffer) < 0 ||
        gpupool_release(side->client, &buffer, options.stream) < 0)
        fail("the taker");
}

/* The taker's process. Ends with the sender's end of the socket. */
static void serve(int fd) {
    struct side side = side_open();
    struct gpupool_token token;

    while (recv(fd, &token, sizeof token, 0) == (ssize_t)sizeof token) {
        take(&side, &token);
        if (send(fd, "", 1, MSG_NOSIGNAL) != 1)
            break;
    }
    gpupool_close(side.client);
}

static void hand_over(const struct side *side, int fd, const struct gpupool_token *token) {
    char answer;

    if (fd < 0)
        take(side, token);
    else if (send(fd, token, sizeof *token, MSG_NOSIGNAL) != (ssize_t)sizeof *token ||
             recv(fd, &answer, 1, 0) != 1) {
        fprintf(stderr, "messages: the taker has ended\n");
        exit(1);
    }
}

static struct gpupool_buffer acquire(const struct side *side, uint64_t size_bytes) {
    struct gpupool_buffer buffer;

    if (gpupool_acquire(side->client, side->pool, size_bytes, options.stream, GPUPOOL_FOREVER, 0, &buffer) <
        0)
        fail("acquire");
    return buffer;
}

static void give_back(const struct side *side, struct gpupool_buffer *buffer) {
    if (gpupool_release(side->client, buffer, options.stream) < 0)
        fail("release");
}

/* The messages on their way, and the sender's own buffers. */
static struct {
    struct message messages[FLIGHT_MAX];
    uint64_t first, sent, live_bytes, peak_bytes;
    struct gpupool_buffer own[OWN_BUFFERS];
} flight;

static void take_until(const struct side *side, int fd, uint64_t most) {
    for (; flight.sent - flight.first > most; flight.first++) {
        const struct message *message = &flight.messages[flight.first % FLIGHT_MAX];
        hand_over(side, fd, &message->token);
        flight.live_bytes -= message->size_bytes;
    }
}

static void send_one(const struct side *side, struct gpupool_buffer *buffer) {
    struct message *message = &flight.messages[flight.sent++ % FLIGHT_MAX];

    message->size_bytes = buffer->size_bytes;
    if (gpupool_send(side->client, buffer, options.stream, 1, LIFETIME_NS, &message->token) < 0)
        fail("send");
    give_back(side, buffer);
}

static void keep(const struct side *side, const struct gpupool_buffer *buffer) {
    struct gpupool_buffer *place = &flight.own[draw() % OWN_BUFFERS];

    if (place->data != NULL) {
        flight.live_bytes -= place->size_bytes;
        give_back(side, place);
    }
    *place = *buffer;
}

static void run(const struct side *side, int fd) {
    unsigned most = options.flight;

    for (unsigned i = 0; i < options.messages; i++) {
        struct gpupool_buffer buffer = acquire(side, draw_size());
        flight.live_bytes += buffer.size_bytes;
        if (flight.live_bytes > flight.peak_bytes)
            flight.peak_bytes = flight.live_bytes;
        if (options.wanders && i % WANDER_ROUNDS == 0)
            most = (unsigned)(draw() % (options.flight + 1));
        if (i % options.each == 0)
            send_one(side, &buffer);
        else
            keep(side, &buffer);
        take_until(side, fd, most);
    }
}

static void measure(const struct side *side, int fd) {
    uint64_t start_ns = clock_now_ns();

    run(side, fd);
    uint64_t took_ns = clock_now_ns() - start_ns, reserved_bytes = pool_of(side).reserved_bytes;
    take_until(side, fd, 0);
    for (unsigned i = 0; i < OWN_BUFFERS; i++)
        if (flight.own[i].data != NULL)
            give_back(side, &flight.own[i]);
    double over = ((double)reserved_bytes - 64.0 * (double)MIB) / (double)flight.peak_bytes;
    printf("live %" PRIu64 " MiB, reserved %" PRIu64 " MiB (less 64 MiB %.2f of it), %.0f messages/s\n",
           flight.peak_bytes / MIB, reserved_bytes / MIB, over < 0 ? 0 : over,
           (double)options.messages / ((double)took_ns / NS_PER_S));
    if (options.json == NULL)
        return;
    fprintf(options.json,
            "{\"live_bytes\": %" PRIu64 ", \"reserved_bytes\": %" PRIu64
            ", \"messages\": %u, \"ns\": %" PRIu64 "}\n",
            flight.peak_bytes, reserved_bytes, options.messages, took_ns);
    fclose(options.json);
}

static _Noreturn void usage(void) {
    fprintf(stderr,
            "usage: messages [--json FILE] [--messages N] [--flight N] [--wander] [--sizes log|uniform]\n"
            "                [--least SIZE] [--most SIZE] [--pool device|host] [--apart] [--stream]\n"
            "                [--no-cache] [--each N] [--seed N]\n");
    exit(2);
}

static bool parse_number(const char *text, unsigned *ret) {
    char *end;
    unsigned long number = strtoul(text, &end, 10);

    *ret = (unsigned)number;
    return end != text && *end == 0 && number < UINT32_MAX;
}

static bool parse_option(int option, const char *text) {
    unsigned seed;

    switch (option) {
    case 'j':
        return (options.json = fopen(text, "we")) != NULL;
    case 'm':
        return parse_number(text, &options.messages) && options.messages > 0;
    case 'f':
        return parse_number(text, &options.flight) && options.flight < FLIGHT_MAX;
    case 'e':
        return parse_number(text, &options.each) && options.each > 0;
    case 'r':
        if (!parse_number(text, &seed))
            return false;
        options.seed = seed;
        return true;
    case 'w':
        return options.wanders = true;
    case 't':
        options.stream = NULL; /* the default stream */
        return true;
    case 'a':
        return options.is_apart = true;
    case 'n':
        return options.has_no_cache = true;
    case 's':
        options.is_uniform = strcmp(text, "uniform") == 0;
        return options.is_uniform || strcmp(text, "log") == 0;
    case 'p':
        options.is_host = strcmp(text, "host") == 0;
        return options.is_host || strcmp(text, "device") == 0;
    case 'l':
        return units_parse_bytes(text, &options.least_bytes) == 0;
    case 'b':
        return units_parse_bytes(text, &options.most_bytes) == 0;
    default:
        return false;
    }
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"json", required_argument, NULL, 'j'},   {"messages", required_argument, NULL, 'm'},
        {"flight", required_argument, NULL, 'f'}, {"wander", no_argument, NULL, 'w'},
        {"sizes", required_argument, NULL, 's'},  {"least", required_argument, NULL, 'l'},
        {"most", required_argument, NULL, 'b'},   {"pool", required_argument, NULL, 'p'},
        {"apart", no_argument, NULL, 'a'},        {"no-cache", no_argument, NULL, 'n'},
        {"each", required_argument, NULL, 'e'},   {"seed", required_argument, NULL, 'r'},
        {"stream", no_argument, NULL, 't'},       {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1)
        if (!parse_option(option, optarg))
            usage();
    if (optind != argc || options.least_bytes == 0 || options.least_bytes > options.most_bytes)
        usage();
}

int main(int argc, char **argv) {
    int fds[2] = {-1, -1}, status = 0;
    pid_t taker = 0;

    parse(argc, argv);
    if (options.is_apart) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0) {
            perror("messages: socketpair");
            return 1;
        }
        taker = fork(); /* before anything of CUDA is there */
        if (taker == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(fds[0]);
            serve(fds[1]);
            return 0;
        }
        close(fds[1]);
    }
    struct side side = side_open();
    measure(&side, fds[0]);
    gpupool_close(side.client);
    if (!options.is_apart)
        return 0;
    close(fds[0]);
    if (waitpid(taker, &status, 0) != taker || status != 0) {
        fprintf(stderr, "messages: the taker failed\n");
        return 1;
    }
    return 0;
}
