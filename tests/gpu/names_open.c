/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long it takes to open a name whose publisher was killed: the first time in a process, which imports the memory, and
 * later. The memory is cut into more and more buffers.
 *
 *     names_open [--gpu cuda|sim] [--size BYTES] [--rounds N] [--whole] [--json FILE] [--check]     default: cuda, 8 GiB, 9
 *
 * The daemon is $GPUPOOL_DAEMON, with device pools of the kind that $GPUPOOL_TEST_EXPORT names. For each number of buffers a
 * process acquires them, sets each to a byte of its own, publishes them with GPUPOOL_NAME_KEEP, and is killed. Another
 * process opens the name and closes it, once for each round, and compares bytes at the start, in the middle and at the
 * end of each buffer.
 *
 * With --whole the buffers are acquired with GPUPOOL_CAN_SLEEP, which lie in as few segments as the pool has: for device pools
 * with export = vmm. Exit status 0: all bytes were right; 1: not so; 77: no GPU. With --check no times are told.
 */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>

#include <gpupool/names.h>

#include "base/clock.h"
#include "tests/bench/statistics.h"
#include "tests/gpu/name_processes.h"

#define NAME       "model"
#define DIRECTORY  "where it lies"
#define ROUNDS_MAX 64u

static const unsigned counts[] = {1, 4, 16, 32, 64};
#define COUNTS (sizeof counts / sizeof *counts)

/* The task of a process. */
struct task {
    unsigned count, rounds;
    uint32_t flags;      /* of the acquires */
    uint64_t size_bytes; /* of all buffers */
};

struct times {
    uint64_t publish_ns, close_ns; /* the first close */
    uint64_t open_ns[ROUNDS_MAX];
};

static struct gpupool_client *open_on_device(uint32_t *ret_pool, void **ret_stream) {
    struct gpupool_client *client = NULL;

    need(gpupool_open(NULL, &client), "open");
    need(gpupool_device_pool(client, 0, ret_pool), "the device's pool");
    need(gpupool_stream_create(client, 0, ret_stream), "a stream");
    return client;
}

/* --- the publisher --- */

/* Publishes behind its work, waits for that, and waits to be killed. */
static int publish(void) {
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
    struct gpupool_buffer buffers[GPUPOOL_NAME_BUFFERS_MAX];
    struct times times = {0};
    struct task task;
    uint32_t pool;
    void *stream;

    need_holds(hear(ROLE_FD, &task, sizeof task), "no task");
    struct gpupool_client *client = open_on_device(&pool, &stream);
    for (unsigned i = 0; i < task.count; i++) {
        need(gpupool_acquire(client, pool, task.size_bytes / task.count, stream, GPUPOOL_FOREVER, task.flags,
                             &buffers[i]),
             "acquire");
        need(gpupool_set(client, 0, buffers[i].data, (int)i + 1, buffers[i].size_bytes, stream), "set");
    }
    publication.flags = GPUPOOL_NAME_KEEP;
    publication.directory = DIRECTORY;
    publication.directory_bytes = sizeof DIRECTORY;
    uint64_t start_ns = clock_now_ns();
    need(gpupool_publish(client, NAME, buffers, task.count, stream, &publication, NULL), "publish");
    times.publish_ns = clock_now_ns() - start_ns;
    need(gpupool_stream_synchronize(client, 0, stream), "synchronize");
    tell(ROLE_FD, &times, sizeof times);
    (void)hear(ROLE_FD, &task, sizeof task);
    return 1;
}

/* --- the reader --- */

static void compare(struct gpupool_client *client, void *stream, const struct gpupool_buffer *buffers,
                    size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint64_t places[] = {0, buffers[i].size_bytes / 2, buffers[i].size_bytes - 1};
        for (unsigned j = 0; j < 3; j++) {
            unsigned char byte = 0;
            need(gpupool_copy(client, 0, &byte, (const char *)buffers[i].data + places[j], 1, stream),
                 "copy");
            need(gpupool_stream_synchronize(client, 0, stream), "synchronize");
            if (byte == i + 1)
                continue;
            fprintf(stderr, "byte %" PRIu64 " of buffer %zu is %u\n", places[j], i, byte);
            exit(1);
        }
    }
}

static int read_rounds(void) {
    struct times times = {0};
    struct task task;
    uint32_t pool;
    void *stream;

    need_holds(hear(ROLE_FD, &task, sizeof task), "no task");
    struct gpupool_client *client = open_on_device(&pool, &stream);
    for (unsigned i = 0; i < task.rounds; i++) {
        struct gpupool_name *name;
        size_t count, bytes;
        uint64_t start_ns = clock_now_ns();
        need(gpupool_open_name(client, NAME, 0, 0, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &name), "open the name");
        times.open_ns[i] = clock_now_ns() - start_ns;
        const struct gpupool_buffer *buffers = gpupool_name_buffers(name, &count);
        const void *directory = gpupool_name_directory(name, &bytes);
        need_holds(count == task.count && bytes == sizeof DIRECTORY &&
                       memcmp(directory, DIRECTORY, bytes) == 0,
                   "the set is another one");
        compare(client, stream, buffers, count);
        start_ns = clock_now_ns();
        need(gpupool_close_name(client, name, GPUPOOL_NO_STREAM), "close the name");
        if (i == 0)
            times.close_ns = clock_now_ns() - start_ns;
    }
    need(gpupool_unpublish(client, NAME, 0), "unpublish");
    need(gpupool_stream_destroy(client, 0, stream), "the end of the stream");
    gpupool_close(client);
    tell(ROLE_FD, &times, sizeof times);
    return 0;
}

/* --- the program --- */

static struct role start(const char *name, const struct task *task) {
    const char *arguments[] = {"names_open", "--role", name, NULL};
    struct role role = role_start(arguments);

    tell(role.fd, task, sizeof *task);
    return role;
}

static struct times play(const struct task *task) {
    struct times published, times;
    struct role publisher = start("publish", task);

    role_hear(&publisher, &published, sizeof published);
    need_holds(kill(publisher.pid, SIGKILL) == 0, "no process to kill");
    (void)role_wait(&publisher);
    struct role reader = start("read", task);
    role_hear(&reader, &times, sizeof times);
    need_holds(role_wait(&reader) == 0, "the reader failed");
    times.publish_ns = published.publish_ns;
    return times;
}

static double ms(uint64_t ns) {
    return (double)ns / (double)NS_PER_MS;
}

static void report(const struct task *task, const struct times *times, FILE *json, bool is_last) {
    struct samples later;

    samples_init(&later, "open_later", task->rounds);
    for (unsigned i = 1; i < task->rounds; i++)
        samples_add(&later, times->open_ns[i]);
    samples_sort(&later);
    printf("%2u buffers of %" PRIu64
           " MiB: publish %.3f ms, first open %.3f ms, later ones %.3f ms, first close %.3f ms\n",
           task->count, (task->size_bytes / task->count) >> 20, ms(times->publish_ns), ms(times->open_ns[0]),
           ms(samples_quantile(&later, 0.5)), ms(times->close_ns));
    if (json != NULL)
        fprintf(json,
                "  {\"buffers\": %u, \"bytes\": %" PRIu64 ", \"publish_ns\": %" PRIu64
                ", \"open_first_ns\": %" PRIu64 ", \"open_later_p50_ns\": %" PRIu64
                ", \"close_first_ns\": %" PRIu64 "}%s\n",
                task->count, task->size_bytes, times->publish_ns, times->open_ns[0],
                samples_quantile(&later, 0.5), times->close_ns, is_last ? "" : ",");
    free(later.ns);
}

static int play_role(const char *name) {
    return strcmp(name, "publish") == 0 ? publish() : read_rounds();
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"gpu", required_argument, NULL, 'g'},    {"size", required_argument, NULL, 's'},
        {"rounds", required_argument, NULL, 'r'}, {"json", required_argument, NULL, 'j'},
        {"check", no_argument, NULL, 'c'},        {"whole", no_argument, NULL, 'w'},
        {"role", required_argument, NULL, 'o'},   {0}};
    struct task task = {.rounds = 9, .size_bytes = UINT64_C(8) << 30};
    const char *gpu = "cuda";
    bool checks = false;
    FILE *json = NULL;
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'o')
            return play_role(optarg);
        if (option == 'g' && (strcmp(optarg, "cuda") == 0 || strcmp(optarg, "sim") == 0))
            gpu = optarg;
        else if (option == 's' && (task.size_bytes = strtoull(optarg, NULL, 10)) >= counts[COUNTS - 1])
            continue;
        else if (option == 'r' && (task.rounds = (unsigned)strtoul(optarg, NULL, 10)) > 1 &&
                 task.rounds <= ROUNDS_MAX)
            continue;
        else if (option == 'j' && (json = fopen(optarg, "we")) != NULL)
            continue;
        else if (option == 'c')
            checks = true;
        else if (option == 'w')
            task.flags = GPUPOOL_CAN_SLEEP;
        else {
            fprintf(stderr, "usage: names_open [--gpu cuda|sim] [--size BYTES] [--rounds N] [--whole] "
                            "[--json FILE] [--check]\n");
            return 2;
        }
    }
    struct gpupool_client *client = open_private(gpu, "");
    if (json != NULL)
        fprintf(json, "[\n");
    for (unsigned i = 0; i < COUNTS; i++) {
        task.count = counts[i];
        const struct times times = play(&task);
        if (!checks)
            report(&task, &times, json, i + 1 == COUNTS);
    }
    if (json != NULL) {
        fprintf(json, "]\n");
        fclose(json);
    }
    printf("the contents were right, GPU: %s\n", gpu);
    gpupool_close(client);
    return 0;
}
