/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures whether a computing process is held up when its idle memory goes to another process. The computing
 * process runs kernels of 100 ms, one behind the other. It launches empty kernels on another stream and times
 * these calls. Its client keeps idle memory that no GPU work uses. Another process of the same user, which
 * has its CUDA context already, asks for more than the pool has left, so idle memory has to move. The
 * launches are timed alone, and in rounds from the request until half a second after the answer.
 *
 *     busy [--json FILE] [--idle SIZE] [--want SIZE] [--piece SIZE] [--rounds N] [--milliseconds N]
 *     default: 3GiB, 2GiB, 64MiB, 5, 100 (of a kernel)
 *
 * Connects to the daemon that GPUPOOL_SOCKET names, whose device pool should be limited to 4 GiB.
 */
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/busy.h"
#include "tests/bench/statistics.h"

#define SAMPLES_MAX 1000000u
#define PIECES_MAX  1024u
#define WAIT_NS     (30 * NS_PER_S)
#define PAUSE_NS    100000            /* between launches */
#define AFTER_NS    (500 * NS_PER_MS) /* measured on, after the answer: memory may move later */

static struct {
    FILE *json;
    uint64_t idle_bytes, want_bytes, piece_bytes;
    unsigned rounds, milliseconds;
} options = {
    .idle_bytes = 3 * GIB, .want_bytes = 2 * GIB, .piece_bytes = 64 * MIB, .rounds = 5, .milliseconds = 100};

static atomic_bool ends;

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "busy: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static void need(int error, const char *what) {
    if (error == 0)
        return;
    fprintf(stderr, "busy: %s: error %d of the driver\n", what, error);
    exit(1);
}

static void open_pool(struct gpupool_client **ret_client, uint32_t *ret_pool) {
    if (gpupool_open(NULL, ret_client) < 0 || gpupool_device_pool(*ret_client, 0, ret_pool) < 0)
        fail("open");
}

/* --- memory in pieces --- */

static struct gpupool_buffer pieces[PIECES_MAX];
static unsigned n_pieces;

static void take(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream) {
    for (uint64_t bytes = 0; bytes < size_bytes && n_pieces < PIECES_MAX; bytes += options.piece_bytes)
        if (gpupool_acquire(client, pool, options.piece_bytes, stream, WAIT_NS, 0, &pieces[n_pieces++]) < 0)
            fail("acquire");
}

/* Releases all pieces. */
static void give(struct gpupool_client *client, void *stream) {
    while (n_pieces > 0)
        if (gpupool_release(client, &pieces[--n_pieces], stream) < 0)
            fail("release");
}

/* --- the process that wants memory --- */

/* Asks when a byte comes, says how long that took, gives it back at the next byte. */
static void want_memory(int from, int to) {
    struct gpupool_client *client;
    uint64_t took_ns = 0;
    uint32_t pool;
    char byte;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_pool(&client, &pool);
    /* The first buffer brings the CUDA context, which is not to be measured. */
    take(client, pool, 1, GPUPOOL_NO_STREAM);
    give(client, GPUPOOL_NO_STREAM);
    while (write(to, &took_ns, sizeof took_ns) == sizeof took_ns && read(from, &byte, 1) == 1) {
        uint64_t start_ns = clock_now_ns();
        take(client, pool, options.want_bytes, GPUPOOL_NO_STREAM);
        took_ns = clock_now_ns() - start_ns;
        if (write(to, &took_ns, sizeof took_ns) != sizeof took_ns || read(from, &byte, 1) != 1)
            break;
        give(client, GPUPOOL_NO_STREAM);
        if (gpupool_trim(client, NULL) < 0)
            fail("trim");
    }
    gpupool_close(client);
    _exit(0);
}

/* --- the process that computes --- */

static void *keep_busy(void *argument) {
    (void)argument;
    while (!ends) {
        need(busy_spin(options.milliseconds), "a kernel");
        need(busy_wait(), "waiting for a kernel");
    }
    return NULL;
}

/* Times launches until a time has passed; or until an answer is there, and a while longer. Returns the
 * answer. */
static uint64_t time_launches(struct samples *samples, uint64_t length_ns, int answer_fd) {
    uint64_t end_ns = clock_now_ns() + length_ns, answer_ns = 0;

    for (;;) {
        uint64_t start_ns = clock_now_ns();
        if (start_ns >= end_ns)
            return answer_ns;
        need(busy_launch(), "a launch");
        samples_add(samples, clock_now_ns() - start_ns);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        struct pollfd answer = {.fd = answer_fd, .events = POLLIN};
        if (answer_fd < 0 || poll(&answer, 1, 0) <= 0)
            continue;
        if (read(answer_fd, &answer_ns, sizeof answer_ns) != sizeof answer_ns)
            exit(1); /* the other process has said why */
        answer_fd = -1;
        end_ns = clock_now_ns() + AFTER_NS;
    }
}

static void print(struct samples *samples, bool last) {
    samples_sort(samples);
    uint64_t p50 = samples_quantile(samples, 0.5), p99 = samples_quantile(samples, 0.99),
             max = samples_quantile(samples, 1);
    printf("%-24s %8zu %10s %10s %10s\n", samples->name, samples->count, NS_TEXT(p50), NS_TEXT(p99),
           NS_TEXT(max));
    if (options.json != NULL)
        fprintf(options.json,
                "  \"%s\": {\"count\": %zu, \"p50_ns\": %llu, \"p99_ns\": %llu, \"max_ns\": %llu}%s\n",
                samples->name, samples->count, (unsigned long long)p50, (unsigned long long)p99,
                (unsigned long long)max, last ? "" : ",");
}

static void compute(int from, int to) {
    struct samples alone, wanted, answers;
    struct gpupool_client *client;
    uint64_t answer_ns;
    pthread_t thread;
    uint32_t pool;
    void *stream;

    samples_init(&alone, "alone", SAMPLES_MAX);
    samples_init(&wanted, "wanted", SAMPLES_MAX);
    samples_init(&answers, "answers", options.rounds);
    open_pool(&client, &pool);
    if (gpupool_stream_create(client, 0, &stream) < 0)
        fail("a stream");
    take(client, pool, options.idle_bytes, stream);
    give(client, stream);
    need(busy_begin(), "the kernels");
    if (read(from, &answer_ns, sizeof answer_ns) != sizeof answer_ns)
        exit(1);
    if (pthread_create(&thread, NULL, keep_busy, NULL) != 0)
        fail("a thread");
    (void)time_launches(&alone, 20 * options.milliseconds * NS_PER_MS, -1);
    for (unsigned round = 0; round < options.rounds; round++) {
        if (write(to, "?", 1) != 1)
            exit(1);
        answer_ns = time_launches(&wanted, WAIT_NS, from);
        samples_add(&answers, answer_ns);
        if (write(to, "!", 1) != 1 || read(from, &answer_ns, sizeof answer_ns) != sizeof answer_ns)
            exit(1);
        take(client, pool, options.idle_bytes, stream);
        give(client, stream);
    }
    ends = true;
    pthread_join(thread, NULL);
    samples_sort(&answers);
    printf("%-24s %8s %10s %10s %10s\n", "launches", "count", "p50", "p99", "longest");
    if (options.json != NULL)
        fprintf(options.json, "{\"launches\": {\n");
    print(&alone, false);
    print(&wanted, true);
    printf("the other process takes %s to acquire %s\n", NS_TEXT(samples_quantile(&answers, 0.5)),
           BYTES_TEXT(options.want_bytes));
    if (options.json != NULL) {
        fprintf(options.json, "}, \"acquire_ns\": %llu, \"wanted_bytes\": %llu}\n",
                (unsigned long long)samples_quantile(&answers, 0.5), (unsigned long long)options.want_bytes);
        fclose(options.json);
    }
    gpupool_close(client);
}

static _Noreturn void usage(void) {
    fprintf(stderr, "usage: busy [--json FILE] [--idle SIZE] [--want SIZE] [--piece SIZE] [--rounds N] "
                    "[--milliseconds N]\n");
    exit(2);
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"json", required_argument, NULL, 'j'},
        {"idle", required_argument, NULL, 'i'},
        {"want", required_argument, NULL, 'w'},
        {"piece", required_argument, NULL, 'p'},
        {"rounds", required_argument, NULL, 'r'},
        {"milliseconds", required_argument, NULL, 'm'},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'j')
            options.json = fopen(optarg, "we");
        else if (option == 'i' && units_parse_bytes(optarg, &options.idle_bytes) == 0)
            ;
        else if (option == 'w' && units_parse_bytes(optarg, &options.want_bytes) == 0)
            ;
        else if (option == 'p' && units_parse_bytes(optarg, &options.piece_bytes) == 0)
            ;
        else if (option == 'r')
            options.rounds = (unsigned)strtoul(optarg, NULL, 10);
        else if (option == 'm')
            options.milliseconds = (unsigned)strtoul(optarg, NULL, 10);
        else
            usage();
    }
    if (optind < argc || options.rounds == 0)
        usage();
}

int main(int argc, char **argv) {
    int questions[2], answers[2];

    parse(argc, argv);
    /* Forked before either process has a CUDA context: one does not survive a fork. */
    if (pipe2(questions, O_CLOEXEC) < 0 || pipe2(answers, O_CLOEXEC) < 0)
        fail("pipes");
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        fail("fork");
    if (child == 0) {
        close(questions[1]);
        close(answers[0]);
        want_memory(questions[0], answers[1]);
    }
    close(questions[0]);
    close(answers[1]);
    compute(answers[0], questions[1]);
    close(questions[1]);
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
