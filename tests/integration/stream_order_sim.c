/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order on the simulated GPU: no block is handed on while a stream still uses it. The
 * counterpart of tests/gpu/stream_order.cu, which uses kernels: this program uses the library's own copies
 * and sets, so that it runs everywhere.
 *
 * Processes, one with a cache and one without, each with threads, each with streams of its own, share small
 * pools. A thread that has a buffer lets a stream, after a while, fill it with a tag, wait a while longer,
 * and copy it to where the tag can be looked for when the stream is through; and gives the buffer back at
 * once: on the stream that took it, on another, or to the CPU. If a block is handed on too early, one of the
 * two finds the other's tag.
 *
 *     stream_order_sim [--arenas] [--rounds N]
 *                                       exit status 0: no foreign write seen; 3: some were; 1: it failed
 *
 * With --arenas the blocks are large and lie in arenas: their segments are moved while streams use them. The
 * tag is written to a stripe of each slot that a block is in. Each worker keeps a few blocks, so that there
 * are gaps, and both processes have a cache. A process ends with the first foreign write. A stream that meets
 * an address which maps nothing ends its device, which counts as a foreign write.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "tests/bounded.h"
#include "tests/device_export.h"

#define KIB         (UINT64_C(1) << 10)
#define MIB         (UINT64_C(1) << 20)
#define PROCESSES   2u
#define THREADS     2u
#define STREAMS     2u
#define CHECKS      8u /* that are under way on a stream at a time */
#define BLOCK_MAX   (128 * KIB)
#define DELAY_BYTES (1 * MIB) /* a copy of so much takes a stream a tenth of a millisecond */
/* Up to so many copies before and after a tag, less one. With --arenas the streams have to be behind when a
 * segment moves. */
#define DELAYS        4u
#define DELAYS_ARENAS 12u
#define FOREIGN     3
#define PATIENCE_NS (UINT64_C(60) * 1000 * 1000 * 1000)
#define TRIM_ROUNDS 16u
#define KEPT        2u /* blocks that a worker keeps, with --arenas */
#define STRIPE      (16 * KIB)
#define STRIDE      (2 * MIB) /* no slot is smaller */
/* Room for what all keep, and little more: blocks go from hand to hand. */
#define POOL_CONFIG "[device]\nlimit = 24MiB\nstep = 2MiB\n[host]\nlimit = 16MiB\nstep = 2MiB\n"
/* With --arenas: each worker has up to three blocks of 16 MiB with their slots. */
#define ARENAS_CONFIG                                                                                        \
    "[device]\nexport = vmm\nlimit = 192MiB\nstep = 2MiB\n[host]\nlimit = 32MiB\nstep = 2MiB\n"

struct process {
    struct gpupool_client *client;
    uint32_t device_pool, host_pool;
    unsigned rounds;
    _Atomic uint64_t foreign, uses;
};

struct check {
    uint64_t size_bytes;
    unsigned char tag;
};

struct stream {
    void *handle;
    struct gpupool_buffer area;  /* host memory: what was found, one block for each check */
    struct gpupool_buffer delay; /* device memory that no other thread writes */
    struct check checks[CHECKS];
    unsigned n_checks;
};

struct kept {
    struct gpupool_buffer buffer;
    void *last; /* the stream that used it */
};

struct worker {
    struct process *process;
    pthread_t thread;
    uint64_t state;
    struct stream streams[STREAMS];
    struct kept kept[KEPT];
    unsigned n_kept;
};

static bool has_arenas; /* of this process */

static void need(int result, const char *what) {
    if (result == 0)
        return;
    fprintf(stderr, "stream_order_sim: %s: %s: %s\n", what, gpupool_error_name(result), gpupool_error_text());
    _exit(has_arenas && strstr(gpupool_error_text(), "cudaErrorIllegalAddress") != NULL ? FOREIGN : 1);
}

static uint64_t random64(struct worker *worker) {
    uint64_t z = worker->state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void look(struct process *process, const unsigned char *bytes, uint64_t size_bytes,
                 unsigned char tag) {
    uint64_t seen = 0;
    for (uint64_t i = 0; i < size_bytes; i++)
        seen += bytes[i] != tag;
    process->foreign += seen;
}

/* Waits for a stream, and looks at what it found. */
static void finish(struct worker *worker, struct stream *stream) {
    need(gpupool_stream_synchronize(worker->process->client, 0, stream->handle), "waiting for a stream");
    for (unsigned i = 0; i < stream->n_checks; i++)
        look(worker->process, (unsigned char *)stream->area.data + i * BLOCK_MAX,
             stream->checks[i].size_bytes, stream->checks[i].tag);
    stream->n_checks = 0;
}

static void delay(struct worker *worker, struct stream *stream) {
    char *data = stream->delay.data;
    for (uint64_t n = random64(worker) % (has_arenas ? DELAYS_ARENAS : DELAYS); n > 0; n--)
        need(gpupool_copy(worker->process->client, 0, data, data + DELAY_BYTES, DELAY_BYTES, stream->handle),
             "a delay");
}

/* Parts of a block that are tagged: all of a small one, a stripe in each slot of a large one. Returns how
 * many; each is of *ret_size_bytes. */
static unsigned stripes_of(const struct gpupool_buffer *buffer, uint64_t offsets[BLOCK_MAX / STRIPE],
                           uint64_t *ret_size_bytes) {
    unsigned count = 0;

    offsets[count++] = 0;
    *ret_size_bytes = buffer->size_bytes;
    if (buffer->size_bytes <= BLOCK_MAX)
        return count;
    *ret_size_bytes = STRIPE;
    for (uint64_t offset = STRIDE; offset + STRIPE < buffer->size_bytes; offset += STRIDE)
        offsets[count++] = offset;
    offsets[count++] = buffer->size_bytes - STRIPE;
    return count;
}

static void use_on_stream(struct worker *worker, const struct gpupool_buffer *buffer, struct stream *stream) {
    struct gpupool_client *client = worker->process->client;
    unsigned char tag = (unsigned char)(random64(worker) | 1);
    uint64_t offsets[BLOCK_MAX / STRIPE], size_bytes;
    unsigned count = stripes_of(buffer, offsets, &size_bytes);

    if (stream->n_checks == CHECKS)
        finish(worker, stream);
    char *area = (char *)stream->area.data + stream->n_checks * BLOCK_MAX;
    delay(worker, stream);
    for (unsigned i = 0; i < count; i++)
        need(gpupool_set(client, 0, (char *)buffer->data + offsets[i], tag, size_bytes, stream->handle),
             "a tag");
    delay(worker, stream);
    for (unsigned i = 0; i < count; i++)
        need(gpupool_copy(client, 0, area + i * size_bytes, (char *)buffer->data + offsets[i], size_bytes,
                          stream->handle),
             "a check");
    stream->checks[stream->n_checks++] = (struct check){count * size_bytes, tag};
    worker->process->uses++;
}

static void use_on_cpu(struct worker *worker, const struct gpupool_buffer *buffer) {
    unsigned char tag = (unsigned char)(random64(worker) & 0xfe);

    memset(buffer->data, tag, buffer->size_bytes);
    for (unsigned i = 0; i < 3; i++) {
        usleep(30);
        look(worker->process, buffer->data, buffer->size_bytes, tag);
    }
    worker->process->uses++;
}

static void release(struct worker *worker, struct gpupool_buffer *buffer, void *last) {
    need(gpupool_release(worker->process->client, buffer, last), "release");
}

/* Keeps a block for a while, in place of another. */
static void keep(struct worker *worker, const struct gpupool_buffer *buffer, void *last) {
    struct kept *kept = &worker->kept[random64(worker) % KEPT];

    if (worker->n_kept < KEPT)
        kept = &worker->kept[worker->n_kept++];
    else
        release(worker, &kept->buffer, kept->last);
    *kept = (struct kept){*buffer, last};
}

static void play_large_round(struct worker *worker) {
    static const uint64_t sizes[] = {5 * MIB, 6 * MIB, 9 * MIB, 12 * MIB};
    struct stream *first = &worker->streams[random64(worker) % STREAMS], *second = first;
    struct gpupool_buffer buffer;

    need(gpupool_acquire(worker->process->client, worker->process->device_pool, sizes[random64(worker) % 4],
                         first->handle, PATIENCE_NS, 0, &buffer),
         "acquire");
    use_on_stream(worker, &buffer, first);
    if (random64(worker) % 8 == 0) {
        second = &worker->streams[random64(worker) % STREAMS];
        finish(worker, first);
        use_on_stream(worker, &buffer, second);
    }
    if (random64(worker) % 2 == 0)
        keep(worker, &buffer, second->handle);
    else
        release(worker, &buffer, second->handle);
}

static void play_round(struct worker *worker) {
    static const uint64_t sizes[] = {4 * KIB, 32 * KIB, 64 * KIB, BLOCK_MAX};
    struct process *process = worker->process;
    struct stream *first = &worker->streams[random64(worker) % STREAMS];
    struct stream *second = &worker->streams[random64(worker) % STREAMS];
    bool on_host = random64(worker) % 3 == 0, by_cpu = on_host && random64(worker) % 2 == 0;
    struct gpupool_buffer buffer;
    void *last = second->handle;

    need(gpupool_acquire(process->client, on_host ? process->host_pool : process->device_pool,
                         sizes[random64(worker) % 4], by_cpu ? GPUPOOL_NO_STREAM : first->handle, PATIENCE_NS,
                         0, &buffer),
         "acquire");
    if (by_cpu) {
        use_on_cpu(worker, &buffer);
        last = GPUPOOL_NO_STREAM;
    } else {
        if (first != second &&
            !on_host) /* what orders the one behind the other; host memory is not in use by any */
            finish(worker, first);
        use_on_stream(worker, &buffer, second);
    }
    release(worker, &buffer, last);
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct process *process = worker->process;

    for (unsigned i = 0; i < STREAMS; i++) {
        need(gpupool_stream_create(process->client, 0, &worker->streams[i].handle), "a stream");
        need(gpupool_acquire(process->client, process->host_pool, CHECKS * BLOCK_MAX, GPUPOOL_NO_STREAM,
                             PATIENCE_NS, 0, &worker->streams[i].area),
             "acquire");
        need(gpupool_acquire(process->client, process->device_pool, 2 * DELAY_BYTES, GPUPOOL_NO_STREAM,
                             PATIENCE_NS, 0, &worker->streams[i].delay),
             "acquire");
    }
    for (unsigned round = 0; round < process->rounds && !(has_arenas && process->foreign > 0); round++) {
        if (has_arenas)
            play_large_round(worker);
        else
            play_round(worker);
        if (round % TRIM_ROUNDS == TRIM_ROUNDS - 1)
            need(gpupool_trim(process->client, NULL), "trim");
    }
    while (worker->n_kept > 0) {
        worker->n_kept--;
        release(worker, &worker->kept[worker->n_kept].buffer, worker->kept[worker->n_kept].last);
    }
    for (unsigned i = 0; i < STREAMS; i++) /* of all, before one is destroyed that has blocks behind others */
        finish(worker, &worker->streams[i]);
    for (unsigned i = 0; i < STREAMS; i++) {
        need(gpupool_release(process->client, &worker->streams[i].area, GPUPOOL_NO_STREAM), "release");
        need(gpupool_release(process->client, &worker->streams[i].delay, GPUPOOL_NO_STREAM), "release");
        need(gpupool_stream_destroy(process->client, 0, worker->streams[i].handle), "the end of a stream");
    }
    return NULL;
}

static int play_process(unsigned number, unsigned rounds) {
    static struct process process;
    static struct worker workers[THREADS];
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    options.flags = number % 2 == 1 && !has_arenas ? GPUPOOL_OPEN_NO_CACHE : 0;
    need(gpupool_open(&options, &process.client), "open");
    need(gpupool_device_pool(process.client, 0, &process.device_pool), "the device's pool");
    need(gpupool_host_pool(process.client, -1, &process.host_pool), "the host's pool");
    process.rounds = rounds;
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.process = &process, .state = number * 1000 + i};
        need(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), "a thread");
    }
    for (unsigned i = 0; i < THREADS; i++)
        need(-test_join(workers[i].thread, NULL), "the end of a thread");
    gpupool_close(process.client);
    printf("%s: %llu uses, %llu foreign bytes seen\n",
           options.flags == 0 ? "with a cache" : "without a cache", (unsigned long long)process.uses,
           (unsigned long long)process.foreign);
    return process.foreign > 0 ? FOREIGN : 0;
}

/* The processes are this program again, because a forked child has no use of its parent's GPU. */
static int play_all(const char *program, const char *rounds, bool in_arenas) {
    char config[] = "/tmp/stream_order.XXXXXX";
    int worst = 0;
    const char *arguments[] = {"--gpu", "sim", "--config", config, "--log-level", "warning", NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    pid_t pids[PROCESSES];

    if (!device_export_write_config(config, in_arenas ? ARENAS_CONFIG : POOL_CONFIG))
        return 1;
    options.socket = "private";
    options.daemon_arguments = arguments;
    need(gpupool_open(&options, &client), "starting a daemon");
    unlink(config);
    setenv("GPUPOOL_SOCKET", gpupool_socket_path(client), 1);
    if (in_arenas)
        setenv("GPUPOOL_ARENAS", "1", 1);
    for (unsigned i = 0; i < PROCESSES; i++) {
        char number[16];
        snprintf(number, sizeof number, "%u", i);
        pids[i] = fork();
        if (pids[i] == 0) {
            execl(program, program, "--process", number, rounds, in_arenas ? "arenas" : "extents",
                  (char *)NULL);
            _exit(1);
        }
    }
    for (unsigned i = 0; i < PROCESSES; i++) {
        int status = 0;
        int result = test_reap(pids[i], &status) == 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (result != 0 && worst != 1)
            worst = result == FOREIGN ? FOREIGN : 1;
    }
    gpupool_close(client);
    printf("%s\n", worst == 0         ? "no foreign write was seen"
                   : worst == FOREIGN ? "FOREIGN WRITES: blocks were handed on while streams used them"
                                      : "a process failed");
    return worst;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    if (argc == 5 && strcmp(argv[1], "--process") == 0) {
        has_arenas = strcmp(argv[4], "arenas") == 0;
        return play_process((unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]));
    }
    const char *program = argv[0];
    bool in_arenas = argc > 1 && strcmp(argv[1], "--arenas") == 0;
    argc -= in_arenas;
    argv += in_arenas;
    return play_all(program, argc == 3 && strcmp(argv[1], "--rounds") == 0 ? argv[2] : "300", in_arenas);
}
