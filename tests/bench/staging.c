/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ordinary memory to a device and back: by the driver's own copy from pageable memory, and by
 * gpupool_upload() and gpupool_download(), with the threads and chunks that they choose themselves and with
 * others. All of it from and to the same memory, in turns. The data that comes back is compared with the
 * original.
 *
 *     staging [--name NAME] [--size SIZE] [--rounds N] [--threads N,…] [--chunks SIZE,…] [--sizes SIZE,…]
 *
 * By default 1 GiB, seven times, and nothing else.
 *
 * Connects to the daemon that GPUPOOL_SOCKET names; its device pool must have room for the size. Prints one
 * JSON object a line, as the driver of the benchmark reads them. Without CUDA the driver's own copy is
 * gpupool_copy()'s.
 */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef BENCH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <gpupool/staging.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/bench/statistics.h"

#define SUBJECTS_MAX 60u

/* Small copies are made several times, up to so much, in a sample. */
#define SAMPLE_BYTES (16 * MIB)

enum way {
    UPLOAD,
    DOWNLOAD,
    UPLOAD_FILE,
    WAYS
};
static const char *const way_names[WAYS] = {"upload", "download", "upload of a file"};

/* One that copies. */
struct subject {
    const char *name, *parameter; /* of the row; parameter: "threads", "chunk_bytes", "size_bytes", or NULL */
    uint64_t value;
    uint64_t size_bytes;           /* of a copy: the beginning of what there is */
    unsigned copies;               /* in a sample */
    struct gpupool_client *client; /* NULL: the driver's own copy */
    struct samples samples[WAYS];
};

/* The data that is copied. */
struct ground {
    struct gpupool_client *client;
    struct gpupool_buffer device;
    void *stream;
    uint64_t size_bytes;
    char *from, *to; /* ordinary memory */
    int file;        /* in the page cache */
};

static void fail(const char *what) {
    fprintf(stderr, "staging: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* --- the driver's own copy --- */

static const char *driver_name = "gpupool_copy, pageable";

static void driver_copy(const struct ground *ground, enum way way, uint64_t size_bytes) {
    void *to = way == UPLOAD ? ground->device.data : ground->to;
    const void *from = way == UPLOAD ? ground->from : ground->device.data;
#ifdef BENCH_CUDA
    if (gpupool_gpu_kind(ground->client) == GPUPOOL_GPU_CUDA) {
        cudaError_t error =
            cudaMemcpy(to, from, size_bytes, way == UPLOAD ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
        if (error == cudaSuccess)
            error = cudaDeviceSynchronize();
        if (error != cudaSuccess) {
            fprintf(stderr, "staging: cudaMemcpy: %s\n", cudaGetErrorString(error));
            exit(1);
        }
        return;
    }
#endif
    if (gpupool_copy(ground->client, 0, to, from, size_bytes, ground->stream) < 0 ||
        gpupool_stream_synchronize(ground->client, 0, ground->stream) < 0)
        fail("copy");
}

/* --- the subjects --- */

static bool can(const struct subject *subject, enum way way) {
    return way != UPLOAD_FILE || (subject->client != NULL && subject->parameter == NULL);
}

static void copy(const struct ground *ground, const struct subject *subject, enum way way) {
    struct gpupool_client *client = subject->client;
    uint64_t size_bytes = subject->size_bytes;
    int r = 0;

    if (client == NULL)
        driver_copy(ground, way, size_bytes);
    else if (way == UPLOAD)
        r = gpupool_upload(client, 0, ground->device.data, ground->from, size_bytes, ground->stream);
    else if (way == DOWNLOAD)
        r = gpupool_download(client, 0, ground->to, ground->device.data, size_bytes, ground->stream);
    else
        r = gpupool_upload_file(client, 0, ground->device.data, ground->file, 0, size_bytes, ground->stream);
    if (r == 0 && client != NULL)
        r = gpupool_stream_synchronize(ground->client, 0, ground->stream);
    if (r < 0)
        fail(way_names[way]);
}

static uint64_t sample(const struct ground *ground, const struct subject *subject, enum way way) {
    uint64_t start_ns = clock_now_ns();
    for (unsigned i = 0; i < subject->copies; i++)
        copy(ground, subject, way);
    return (clock_now_ns() - start_ns) / subject->copies;
}

/* Once, before it counts: its threads are started, its blocks are there, and it copies rightly. */
static void warm_up(const struct ground *ground, const struct subject *subject) {
    for (enum way way = UPLOAD; way < WAYS; way++) {
        if (way == DOWNLOAD || !can(subject, way))
            continue;
        if (gpupool_set(ground->client, 0, ground->device.data, 0, subject->size_bytes, ground->stream) < 0 ||
            gpupool_stream_synchronize(ground->client, 0, ground->stream) <
                0) /* the driver's is on another */
            fail("set");
        copy(ground, subject, way);
        memset(ground->to, 0xff, subject->size_bytes);
        copy(ground, subject, DOWNLOAD);
        if (memcmp(ground->from, ground->to, subject->size_bytes) != 0) {
            fprintf(stderr, "staging: %s: what came back is not what went there\n", subject->name);
            exit(1);
        }
    }
}

static void add(struct subject *subjects, unsigned *count, const char *name, const char *parameter,
                uint64_t value, uint64_t size_bytes, unsigned rounds) {
    const char *variable = parameter == NULL                       ? NULL
                           : strcmp(parameter, "threads") == 0     ? "GPUPOOL_STAGING_THREADS"
                           : strcmp(parameter, "chunk_bytes") == 0 ? "GPUPOOL_STAGING_CHUNK"
                                                                   : NULL;
    struct subject *subject = &subjects[*count];
    char text[32];

    if (*count == SUBJECTS_MAX)
        exit(2);
    *subject =
        (struct subject){.name = name, .parameter = parameter, .value = value, .size_bytes = size_bytes};
    subject->copies = size_bytes < SAMPLE_BYTES ? (unsigned)(SAMPLE_BYTES / size_bytes) : 1;
    snprintf(text, sizeof text, "%" PRIu64, value);
    if (variable != NULL)
        setenv(variable, text, 1);
    if (name != driver_name && gpupool_open(NULL, &subject->client) < 0)
        fail("open");
    if (variable != NULL)
        unsetenv(variable);
    for (unsigned i = 0; i < WAYS; i++)
        samples_init(&subject->samples[i], way_names[i], rounds);
    (*count)++;
}

/* "8,12", "1MiB,4MiB" */
static void add_list(struct subject *subjects, unsigned *count, const char *name, const char *parameter,
                     char *list, uint64_t size_bytes, unsigned rounds) {
    bool is_size = strcmp(parameter, "size_bytes") == 0;
    char *rest = NULL;

    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        uint64_t value;
        if (units_parse_bytes(word, &value) < 0 || value == 0 || (is_size && value > size_bytes))
            exit(2);
        if (is_size)
            add(subjects, count, driver_name, parameter, value, value, rounds);
        add(subjects, count, name, parameter, value, is_size ? value : size_bytes, rounds);
    }
}

static void print(struct subject *subject) {
    for (unsigned way = 0; way < WAYS; way++) {
        struct samples *samples = &subject->samples[way];
        if (samples->count == 0)
            continue;
        samples_sort(samples);
        printf("{\"case\": \"staging%s%s\", \"subject\": \"%s\", \"parameters\": {\"direction\": \"%s\"",
               subject->parameter != NULL ? "_" : "", subject->parameter != NULL ? subject->parameter : "",
               subject->name, way_names[way]);
        if (subject->parameter != NULL && strcmp(subject->parameter, "size_bytes") != 0)
            printf(", \"%s\": %" PRIu64, subject->parameter, subject->value);
        printf(", \"size_bytes\": %" PRIu64 "}, \"values\": {\"gb_per_s\": %.3f}}\n", subject->size_bytes,
               (double)subject->size_bytes / (double)samples_quantile(samples, 0.5));
    }
}

/* --- the ground --- */

static char *ordinary_memory(uint64_t size_bytes) {
    char *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("staging: mmap");
        exit(1);
    }
    for (uint64_t i = 0; i + sizeof i <= size_bytes; i += sizeof i) /* nothing that compresses or repeats */
        *(uint64_t *)(void *)(memory + i) = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    return memory;
}

static int file_of(const char *memory, uint64_t size_bytes) {
    int fd = memfd_create("staging", MFD_CLOEXEC);
    for (uint64_t done = 0; done < size_bytes;) {
        ssize_t n = fd < 0 ? -1 : write(fd, memory + done, size_bytes - done);
        if (n <= 0) {
            perror("staging: a file");
            exit(1);
        }
        done += (uint64_t)n;
    }
    return fd;
}

static void prepare(struct ground *ground) {
    uint32_t pool;

    ground->from = ordinary_memory(ground->size_bytes);
    ground->to = ordinary_memory(ground->size_bytes);
    ground->file = file_of(ground->from, ground->size_bytes);
    if (gpupool_open(NULL, &ground->client) < 0)
        fail("open");
    if (gpupool_gpu_kind(ground->client) == GPUPOOL_GPU_NONE) {
        fprintf(stderr, "staging: the daemon serves no GPU\n");
        exit(77);
    }
    if (gpupool_stream_create(ground->client, 0, &ground->stream) < 0 ||
        gpupool_device_pool(ground->client, 0, &pool) < 0 ||
        gpupool_acquire(ground->client, pool, ground->size_bytes, ground->stream, GPUPOOL_FOREVER, 0,
                        &ground->device) < 0)
        fail("device memory");
#ifdef BENCH_CUDA
    if (gpupool_gpu_kind(ground->client) == GPUPOOL_GPU_CUDA)
        driver_name = "cudaMemcpy, pageable";
#endif
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"name", required_argument, NULL, 'n'},
                                            {"size", required_argument, NULL, 's'},
                                            {"rounds", required_argument, NULL, 'r'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"chunks", required_argument, NULL, 'c'},
                                            {"sizes", required_argument, NULL, 'z'},
                                            {0}};
    static struct subject subjects[SUBJECTS_MAX];
    struct ground ground = {.size_bytes = GIB};
    char *threads = NULL, *chunks = NULL, *sizes = NULL;
    const char *name = "gpupool";
    unsigned rounds = 7, count = 0;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'n')
            name = optarg;
        else if (option == 't')
            threads = optarg;
        else if (option == 'c')
            chunks = optarg;
        else if (option == 'z')
            sizes = optarg;
        else if (option == 'r' && strtoul(optarg, NULL, 10) > 0)
            rounds = (unsigned)strtoul(optarg, NULL, 10);
        else if (option != 's' || units_parse_bytes(optarg, &ground.size_bytes) < 0 || ground.size_bytes == 0)
            return 2;
    }
    prepare(&ground);
    add(subjects, &count, driver_name, NULL, 0, ground.size_bytes, rounds);
    add(subjects, &count, name, NULL, 0, ground.size_bytes, rounds);
    if (threads != NULL)
        add_list(subjects, &count, name, "threads", threads, ground.size_bytes, rounds);
    if (chunks != NULL)
        add_list(subjects, &count, name, "chunk_bytes", chunks, ground.size_bytes, rounds);
    if (sizes != NULL)
        add_list(subjects, &count, name, "size_bytes", sizes, ground.size_bytes, rounds);
    for (unsigned i = 0; i < count; i++)
        warm_up(&ground, &subjects[i]);
    for (unsigned round = 0; round < rounds; round++) /* what disturbs the one disturbs the other */
        for (unsigned i = 0; i < count; i++)
            for (enum way way = UPLOAD; way < WAYS; way++)
                if (can(&subjects[i], way))
                    samples_add(&subjects[i].samples[way], sample(&ground, &subjects[i], way));
    for (unsigned i = 0; i < count; i++) {
        print(&subjects[i]);
        gpupool_close(subjects[i].client);
    }
    gpupool_release(ground.client, &ground.device, ground.stream);
    gpupool_close(ground.client);
    return 0;
}
