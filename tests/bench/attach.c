/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a worker that starts anew waits for weights which another process holds: a large buffer of a
 * device pool, attached by a token in a fresh process that has a context. "acquire" and "share" are the
 * holder's times; "attach" is the worker's, and "again" that of attaching the same buffer a second time.
 *
 *     attach [--json FILE] [--size SIZE] [--rounds N]        default: 8GiB, 5
 *
 * Connects to the daemon that GPUPOOL_SOCKET names, whose device pool should be new: afterwards it is as
 * large as the buffer.
 */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/statistics.h"

extern char **environ;

enum time {
    ACQUIRE,
    SHARE,
    ATTACH,
    AGAIN,
    TIMES
};
static const char *const names[TIMES] = {"acquire", "share", "attach", "again"};

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "attach: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static struct gpupool_client *open_client(void **ret_stream, uint32_t *ret_pool) {
    struct gpupool_client *client;

    if (gpupool_open(NULL, &client) < 0 || gpupool_stream_create(client, 0, ret_stream) < 0 ||
        gpupool_device_pool(client, 0, ret_pool) < 0)
        fail("open");
    return client;
}

static void close_client(struct gpupool_client *client, void *stream) {
    gpupool_stream_synchronize(client, 0, stream);
    gpupool_trim(client, NULL); /* before its stream goes */
    gpupool_stream_destroy(client, 0, stream);
    gpupool_close(client);
}

/* The worker: the token comes on its standard input, and the times go to its standard output. */
static int worker_main(void) {
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    uint32_t pool;
    void *stream;

    if (fread(&token, sizeof token, 1, stdin) != 1)
        return 1;
    struct gpupool_client *client = open_client(&stream, &pool);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t start_ns = clock_now_ns();
        if (gpupool_attach(client, &token, stream, 0, &buffer) < 0)
            fail("attach");
        printf("%" PRIu64 "\n", clock_now_ns() - start_ns);
        if (gpupool_release(client, &buffer, stream) < 0)
            fail("release");
    }
    close_client(client, stream);
    return 0;
}

static void run_worker(const struct gpupool_token *token, struct samples *samples) {
    char own[] = "/proc/self/exe", argument[] = "--worker";
    char *arguments[] = {own, argument, NULL};
    posix_spawn_file_actions_t actions;
    int in[2], out[2], status;
    uint64_t ns;
    pid_t pid;

    if (pipe2(in, O_CLOEXEC) < 0 || pipe2(out, O_CLOEXEC) < 0)
        exit(1);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    if (posix_spawn(&pid, own, &actions, NULL, arguments, environ) != 0)
        exit(1);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    if (write(in[1], token, sizeof *token) != (ssize_t)sizeof *token)
        exit(1);
    close(in[1]);
    FILE *answer = fdopen(out[0], "r");
    for (unsigned i = ATTACH; i <= AGAIN; i++) {
        if (answer == NULL || fscanf(answer, "%" SCNu64, &ns) != 1)
            exit(1); /* the worker has said why */
        samples_add(&samples[i], ns);
    }
    fclose(answer);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        exit(1);
}

static void measure(uint64_t size_bytes, unsigned rounds, struct samples *samples) {
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    uint32_t pool;
    void *stream;

    struct gpupool_client *client = open_client(&stream, &pool);
    uint64_t start_ns = clock_now_ns();
    if (gpupool_acquire(client, pool, size_bytes, stream, GPUPOOL_FOREVER, 0, &buffer) < 0)
        fail("acquire");
    uint64_t acquired_ns = clock_now_ns();
    if (gpupool_share(client, &buffer, stream, &token) < 0)
        fail("share");
    samples_add(&samples[ACQUIRE], acquired_ns - start_ns);
    samples_add(&samples[SHARE], clock_now_ns() - acquired_ns);
    for (unsigned i = 0; i < rounds; i++)
        run_worker(&token, samples);
    gpupool_release(client, &buffer, stream);
    close_client(client, stream);
}

int main(int argc, char **argv) {
    static const struct option known[] = {{"json", required_argument, NULL, 'j'},
                                          {"size", required_argument, NULL, 's'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {0}};
    struct samples samples[TIMES];
    uint64_t size_bytes = 8 * GIB;
    unsigned rounds = 5;
    FILE *json = NULL;
    int option;

    if (argc == 2 && strcmp(argv[1], "--worker") == 0)
        return worker_main();
    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'j' && (json = fopen(optarg, "we")) != NULL)
            continue;
        if (option == 's' && units_parse_bytes(optarg, &size_bytes) == 0)
            continue;
        if (option == 'r' && (rounds = (unsigned)strtoul(optarg, NULL, 10)) > 0)
            continue;
        fprintf(stderr, "usage: attach [--json FILE] [--size SIZE] [--rounds N]\n");
        return 2;
    }
    for (unsigned i = 0; i < TIMES; i++)
        samples_init(&samples[i], names[i], rounds);
    measure(size_bytes, rounds, samples);
    printf("%s\n", BYTES_TEXT(size_bytes));
    if (json != NULL)
        fprintf(json, "{\"size_bytes\": %" PRIu64 ", \"times\": {\n", size_bytes);
    for (unsigned i = 0; i < TIMES; i++) {
        samples_sort(&samples[i]);
        printf("%-10s %s, max %s\n", names[i], NS_TEXT(samples_quantile(&samples[i], 0.5)),
               NS_TEXT(samples_quantile(&samples[i], 1)));
        if (json != NULL)
            samples_print_json(&samples[i], json, i == AGAIN);
    }
    if (json != NULL) {
        fprintf(json, "}}\n");
        fclose(json);
    }
    return 0;
}
