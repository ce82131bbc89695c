/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a large buffer takes to sleep and to wake, beside the bare copies of as much memory in the same run:
 *
 *     sleepers [--gpu cuda|sim] [--size SIZE] [--rounds N] [--json FILE] [--check]     default: cuda, 8GiB, 7
 *
 * The daemon is $GPUPOOL_DAEMON, with a device pool whose export is vmm. Each round sets the buffer, lets it sleep and
 * wake with its contents on the GPU, copies as much to pinned host memory and back, and lets it sleep and wake with
 * its contents in host memory. The host memory of the copies is the one that the contents are kept in: the library's
 * cache has it. The first round, which maps it, does not count. The contents are compared in places.
 *
 * There are two bars: 10 ms for sleep and wake together with the contents on the GPU, and 1.1 times the copies with
 * the contents in host memory. Medians count. With --check the exit status is 1 where one is missed: on a simulated
 * GPU, whose copies are those of a processor, that says nothing.
 *
 * Exit status 77: no GPU.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/statistics.h"
#include "tests/device_export.h"

#define CHUNK_BYTES  (256 * MIB)
#define CHUNKS_MAX   1024u
#define PLACES       64u
#define ON_GPU_NS    (10 * NS_PER_MS)
#define HOST_PERCENT 110u
#define SKIPPED      77

enum time {
    SLEEP_ON_GPU,
    WAKE_ON_GPU,
    COPY_OUT,
    COPY_IN,
    SLEEP_IN_HOST,
    WAKE_IN_HOST,
    TIMES
};
static const char *const names[TIMES] = {"sleep_on_gpu", "wake_on_gpu",   "copy_out",
                                         "copy_in",      "sleep_in_host", "wake_in_host"};

struct scene {
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    void *stream;
    uint32_t host_pool;
    struct gpupool_buffer chunks[CHUNKS_MAX]; /* pinned, as large as the buffer together */
    unsigned n_chunks;
    struct samples samples[TIMES];
};

static void need(int r, const char *what) {
    if (r == 0)
        return;
    fprintf(stderr, "sleepers: %s: %s\n", what, gpupool_error_text());
    exit(r == GPUPOOL_E_NO_GPU ? SKIPPED : 1);
}

static void begin(struct scene *scene, const char *gpu, uint64_t size_bytes) {
    char config[] = "/tmp/gpupool-sleepers-XXXXXX";
    const char *arguments[] = {"--config", config, "--gpu", gpu, NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    uint32_t pool;

    if (!device_export_write_config(config, "[device]\nexport = vmm\n"))
        exit(1);
    options.socket = "private";
    options.daemon_arguments = arguments;
    options.alloc_timeout_ns = 60 * NS_PER_S;
    options.decay_ns = GPUPOOL_FOREVER;
    int r = gpupool_open(&options, &scene->client);
    unlink(config);
    need(r, "open");
    need(gpupool_device_pool(scene->client, 0, &pool), "the device's pool");
    need(gpupool_host_pool(scene->client, -1, &scene->host_pool), "the host pool");
    need(gpupool_stream_create(scene->client, 0, &scene->stream), "a stream");
    need(gpupool_acquire(scene->client, pool, size_bytes, scene->stream, GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP,
                         &scene->buffer),
         "acquire");
}

static void synchronize(struct scene *scene) {
    need(gpupool_stream_synchronize(scene->client, 0, scene->stream), "synchronize");
}

/* --- contents --- */

static void set(struct scene *scene, int byte) {
    need(gpupool_set(scene->client, 0, scene->buffer.data, byte, scene->buffer.size_bytes, scene->stream),
         "set");
    synchronize(scene);
}

static void compare(struct scene *scene, int byte) {
    uint64_t distance = (scene->buffer.size_bytes - 1) / (PLACES - 1);
    unsigned char bytes[PLACES] = {0};

    for (unsigned i = 0; i < PLACES; i++)
        need(gpupool_copy(scene->client, 0, &bytes[i], (char *)scene->buffer.data + i * distance, 1,
                          scene->stream),
             "copy");
    synchronize(scene);
    for (unsigned i = 0; i < PLACES; i++)
        if (bytes[i] != (unsigned char)byte) {
            fprintf(stderr, "sleepers: byte %" PRIu64 " is %u, not %d\n", i * distance, bytes[i], byte);
            exit(1);
        }
}

/* --- what is measured --- */

static void copy_bare(struct scene *scene, bool is_out) {
    char *memory = scene->buffer.data;

    for (unsigned i = 0; i < scene->n_chunks; i++) {
        struct gpupool_buffer *chunk = &scene->chunks[i];
        need(gpupool_copy(scene->client, 0, is_out ? chunk->data : memory, is_out ? memory : chunk->data,
                          chunk->size_bytes, scene->stream),
             "copy");
        memory += chunk->size_bytes;
    }
    synchronize(scene);
}

static void acquire_chunks(struct scene *scene) {
    scene->n_chunks = 0;
    for (uint64_t left = scene->buffer.capacity_bytes; left > 0;) {
        uint64_t size_bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        need(gpupool_acquire(scene->client, scene->host_pool, size_bytes, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER,
                             0, &scene->chunks[scene->n_chunks++]),
             "host memory");
        left -= size_bytes;
    }
}

static void release_chunks(struct scene *scene) {
    for (unsigned i = 0; i < scene->n_chunks; i++)
        need(gpupool_release(scene->client, &scene->chunks[i], GPUPOOL_NO_STREAM), "release");
}

static void sleep_and_wake(struct scene *scene, enum gpupool_keep keep, uint64_t ret_ns[2]) {
    uint64_t start_ns = clock_now_ns();
    need(gpupool_sleep(scene->client, &scene->buffer, keep, scene->stream), "sleep");
    uint64_t slept_ns = clock_now_ns();
    need(gpupool_wake(scene->client, &scene->buffer, scene->stream, GPUPOOL_FOREVER, 0), "wake");
    synchronize(scene);
    ret_ns[0] = slept_ns - start_ns;
    ret_ns[1] = clock_now_ns() - slept_ns;
}

static void play_round(struct scene *scene, int byte, bool counts) {
    uint64_t ns[TIMES];

    set(scene, byte);
    sleep_and_wake(scene, GPUPOOL_KEEP_ON_GPU, &ns[SLEEP_ON_GPU]);
    compare(scene, byte);
    acquire_chunks(scene);
    uint64_t start_ns = clock_now_ns();
    copy_bare(scene, true);
    uint64_t copied_ns = clock_now_ns();
    copy_bare(scene, false);
    ns[COPY_OUT] = copied_ns - start_ns;
    ns[COPY_IN] = clock_now_ns() - copied_ns;
    release_chunks(scene);
    sleep_and_wake(scene, GPUPOOL_KEEP_IN_HOST, &ns[SLEEP_IN_HOST]);
    compare(scene, byte);
    for (unsigned i = 0; counts && i < TIMES; i++)
        samples_add(&scene->samples[i], ns[i]);
}

/* --- what is told --- */

static uint64_t median(const struct scene *scene, enum time time) {
    return samples_quantile(&scene->samples[time], 0.5);
}

/* Returns whether both bars hold. */
static bool report(struct scene *scene) {
    for (unsigned i = 0; i < TIMES; i++) {
        samples_sort(&scene->samples[i]);
        printf("%-14s %s, max %s\n", names[i], NS_TEXT(median(scene, i)),
               NS_TEXT(samples_quantile(&scene->samples[i], 1)));
    }
    uint64_t on_gpu_ns = median(scene, SLEEP_ON_GPU) + median(scene, WAKE_ON_GPU);
    uint64_t in_host_ns = median(scene, SLEEP_IN_HOST) + median(scene, WAKE_IN_HOST);
    uint64_t copies_ns = median(scene, COPY_OUT) + median(scene, COPY_IN);
    bool is_quick = on_gpu_ns <= ON_GPU_NS, is_near = in_host_ns * 100 <= copies_ns * HOST_PERCENT;
    printf("contents on the GPU: %s together, the bar is %s: %s\n", NS_TEXT(on_gpu_ns), NS_TEXT(ON_GPU_NS),
           is_quick ? "held" : "missed");
    printf("contents in host memory: %.3f times the copies, the bar is %.2f: %s\n",
           (double)in_host_ns / (double)copies_ns, HOST_PERCENT / 100.0, is_near ? "held" : "missed");
    return is_quick && is_near;
}

static void write_json(struct scene *scene, FILE *json) {
    fprintf(json, "{\"size_bytes\": %" PRIu64 ", \"times\": {\n", scene->buffer.size_bytes);
    for (unsigned i = 0; i < TIMES; i++)
        samples_print_json(&scene->samples[i], json, i + 1 == TIMES);
    fprintf(json, "}}\n");
    fclose(json);
}

static void end(struct scene *scene) {
    need(gpupool_release(scene->client, &scene->buffer, scene->stream), "release");
    need(gpupool_stream_destroy(scene->client, 0, scene->stream), "the end of the stream");
    gpupool_close(scene->client);
    for (unsigned i = 0; i < TIMES; i++)
        free(scene->samples[i].ns);
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"gpu", required_argument, NULL, 'g'},    {"size", required_argument, NULL, 's'},
        {"rounds", required_argument, NULL, 'r'}, {"json", required_argument, NULL, 'j'},
        {"check", no_argument, NULL, 'c'},        {0}};
    static struct scene scene;
    const char *gpu = "cuda";
    uint64_t size_bytes = 8 * GIB;
    unsigned rounds = 7;
    bool checks = false;
    FILE *json = NULL;
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'g' && (strcmp(optarg, "cuda") == 0 || strcmp(optarg, "sim") == 0))
            gpu = optarg;
        else if (option == 's' && units_parse_bytes(optarg, &size_bytes) == 0 &&
                 size_bytes <= CHUNKS_MAX / 2 * CHUNK_BYTES && size_bytes >= PLACES)
            continue;
        else if (option == 'r' && (rounds = (unsigned)strtoul(optarg, NULL, 10)) > 0)
            continue;
        else if (option == 'j' && (json = fopen(optarg, "we")) != NULL)
            continue;
        else if (option == 'c')
            checks = true;
        else {
            fprintf(stderr,
                    "usage: sleepers [--gpu cuda|sim] [--size SIZE] [--rounds N] [--json FILE] [--check]\n");
            return 2;
        }
    }
    for (unsigned i = 0; i < TIMES; i++)
        samples_init(&scene.samples[i], names[i], rounds);
    begin(&scene, gpu, size_bytes);
    for (unsigned i = 0; i <= rounds; i++)
        play_round(&scene, 1 + (int)(i % 255), i > 0);
    printf("%s, %u rounds, GPU: %s\n", BYTES_TEXT(size_bytes), rounds, gpu);
    bool holds = report(&scene);
    if (json != NULL)
        write_json(&scene, json);
    end(&scene);
    return checks && !holds ? 1 : 0;
}
