/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order on a real GPU: no block is handed on while a kernel still uses it.
 *
 * Processes, each with threads, each with streams of its own, share small pools, so that every block passes from hand to
 * hand. A thread that has a buffer starts a kernel that fills it with a tag of its own and then, for a while, looks whether every
 * word still is that tag; and gives the buffer back at once, with the kernel in flight: on the stream that took it, on
 * another that was made to wait for it, or through another thread. Host memory takes turns with the CPU. If a block were
 * handed on too early, its next user would write into it while the kernel looks: a foreign write, which is counted.
 *
 *     stream_order [--arenas] [--rounds N] [--threads N] [--processes N]
 *                                                exit status 0: none seen; 3: foreign writes seen; 1: it failed
 *
 * With --arenas the blocks are device memory above 4 MiB in arenas, whose segments are moved while kernels use them. There
 * a kernel that meets an address which maps nothing counts as a foreign write.
 *
 * Half of the processes have a cache and half have none; the pools are small; memory goes back to the daemon all the time.
 */
#include <cuda_runtime.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "tests/device_export.h"

#define MIB         (UINT64_C(1) << 20)
#define STREAMS     3u
#define LIVE        3u   /* buffers that a thread keeps for a while */
#define THREADS_MAX 16u
#define HANDED_MAX  8u /* with those that are kept: less than the pools hold, or all would wait for each other */
#define FOREIGN     3
#define PATIENCE_NS (UINT64_C(60) * 1000 * 1000 * 1000)
/* Pools that all processes together fill many times over. */
#define DEVICE_LIMIT "384MiB"
#define HOST_LIMIT   "64MiB"
/* With --arenas: slots are of 8 MiB. The blocks that all threads keep are less than the pool has, with the slots that they
 * have a part of. */
#define ARENAS_LIMIT     "960MiB"
#define ARENAS_LIVE      2u
#define ARENAS_HANDED    4u
#define ARENAS_PROCESSES 2u

/* Fills the words with the tag, then looks at them again and again until so many clocks have passed. Each thread looks at
 * what it wrote itself, so no barrier is needed. */
__global__ void fill_and_watch(volatile uint32_t *words, size_t count, uint32_t tag, long long clocks,
                               unsigned long long *foreign) {
    size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x, stride = (size_t)gridDim.x * blockDim.x;
    unsigned long long seen = 0;

    for (size_t i = first; i < count; i += stride)
        words[i] = tag;
    __threadfence_system();
    long long start = clock64();
    do
        for (size_t i = first; i < count; i += stride)
            if (words[i] != tag)
                seen++;
    while (clock64() - start < clocks);
    if (seen > 0)
        atomicAdd_system(foreign, seen);
}

struct held {
    struct gpupool_buffer buffer;
    cudaStream_t last; /* the stream that used it last */
    bool on_host;
};

/* Buffers on their way from one thread to another, with their kernels in flight. */
struct exchange {
    pthread_mutex_t lock;
    struct held held[HANDED_MAX];
    unsigned count;
};

struct process {
    struct gpupool_client *client;
    uint32_t device_pool, host_pool;
    unsigned rounds;
    struct exchange exchange;
    unsigned long long *foreign; /* in memory that GPU and CPU see */
};

struct worker {
    struct process *process;
    pthread_t thread;
    unsigned number;
    uint64_t state;
    cudaStream_t streams[STREAMS];
    cudaEvent_t event;
    struct held live[LIVE];
    unsigned n_live, kernels;
};

static bool has_arenas; /* of this process */

static void fail(const char *what) {
    bool is_unmapped = cudaPeekAtLastError() == cudaErrorIllegalAddress ||
                       strstr(gpupool_error_text(), "cudaErrorIllegalAddress") != NULL;

    fprintf(stderr, "stream_order: %s: %s; CUDA: %s\n", what, gpupool_error_text(),
            cudaGetErrorString(cudaPeekAtLastError()));
    _exit(has_arenas && is_unmapped ? FOREIGN : 1);
}

static void need(bool holds, const char *what) {
    if (!holds)
        fail(what);
}

static uint64_t random64(struct worker *worker) {
    uint64_t z = worker->state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void release(struct worker *worker, struct held *held) {
    need(gpupool_release(worker->process->client, &held->buffer, held->last) == 0, "release");
}

/* Starts the kernel on the stream. */
static void use(struct worker *worker, struct held *held, cudaStream_t stream) {
    uint32_t tag = (uint32_t)random64(worker) | 1;
    long long clocks = 20000 + (long long)(random64(worker) % 400000); /* 10 to 250 µs at 1.7 GHz */

    fill_and_watch<<<8, 256, 0, stream>>>((volatile uint32_t *)held->buffer.data, held->buffer.size_bytes / 4, tag,
                                          clocks, worker->process->foreign);
    need(cudaGetLastError() == cudaSuccess, "starting a kernel");
    held->last = stream;
    worker->kernels++;
}

/* Host memory that no kernel uses any more is the CPU's: it writes, waits a moment, and looks. */
static void use_by_cpu(struct worker *worker, const struct held *held) {
    volatile uint32_t *words = (volatile uint32_t *)held->buffer.data;
    size_t count = held->buffer.size_bytes / 4, step = 61;
    uint32_t tag = (uint32_t)random64(worker) & ~UINT32_C(1);
    unsigned long long seen = 0;

    for (size_t i = 0; i < count; i += step)
        words[i] = tag;
    for (unsigned look = 0; look < 3; look++)
        for (size_t i = 0; i < count; i += step)
            seen += words[i] != tag;
    if (seen > 0)
        __atomic_fetch_add(worker->process->foreign, seen, __ATOMIC_RELAXED);
}

static void hand_over(struct worker *worker, struct held *held) {
    struct exchange *exchange = &worker->process->exchange;
    struct held taken = *held;

    pthread_mutex_lock(&exchange->lock);
    if (exchange->count == (has_arenas ? ARENAS_HANDED : HANDED_MAX) || (exchange->count > 0 && random64(worker) % 2 == 0)) {
        unsigned which = (unsigned)(random64(worker) % exchange->count);
        taken = exchange->held[which];
        exchange->held[which] = *held;
    } else {
        exchange->held[exchange->count++] = *held;
        taken.last = NULL;
        taken.buffer.lease = 0;
    }
    pthread_mutex_unlock(&exchange->lock);
    if (taken.buffer.lease != 0)
        release(worker, &taken);
}

static void play_round(struct worker *worker) {
    static const uint64_t sizes[] = {64 << 10, 256 << 10, 256 << 10, 1 << 20, 1 << 20, 3 << 20};
    static const uint64_t large_sizes[] = {5 * MIB, 8 * MIB, 12 * MIB};
    struct process *process = worker->process;
    struct held held = {};
    cudaStream_t first = worker->streams[random64(worker) % STREAMS];
    cudaStream_t second = worker->streams[random64(worker) % STREAMS];
    bool by_cpu = false;

    held.on_host = random64(worker) % 4 == 0 && !has_arenas;
    by_cpu = held.on_host && random64(worker) % 2 == 0;
    uint64_t size = has_arenas ? large_sizes[random64(worker) % 3] : sizes[random64(worker) % (held.on_host ? 3 : 6)];
    need(gpupool_acquire(process->client, held.on_host ? process->host_pool : process->device_pool, size,
                         by_cpu ? GPUPOOL_NO_STREAM : (void *)first, PATIENCE_NS, 0, &held.buffer) == 0,
         "acquire");
    if (by_cpu) {
        use_by_cpu(worker, &held);
        held.last = (cudaStream_t)GPUPOOL_NO_STREAM;
        if (random64(worker) % 2 == 0) { /* and then a kernel */
            use(worker, &held, first);
        }
        release(worker, &held);
        return;
    }
    if (first != second) { /* taken on one stream, used and given back on another */
        need(cudaEventRecord(worker->event, first) == cudaSuccess &&
                 cudaStreamWaitEvent(second, worker->event, 0) == cudaSuccess,
             "ordering two streams");
    }
    use(worker, &held, second);
    switch (random64(worker) % 4) {
    case 0:
        hand_over(worker, &held);
        break;
    case 1: /* kept for a while */
        if (worker->n_live == (has_arenas ? ARENAS_LIVE : LIVE))
            release(worker, &worker->live[--worker->n_live]);
        worker->live[worker->n_live++] = held;
        break;
    default:
        release(worker, &held);
    }
}

static void *worker_main(void *argument) {
    struct worker *worker = (struct worker *)argument;
    struct process *process = worker->process;

    for (unsigned i = 0; i < STREAMS; i++)
        need(cudaStreamCreateWithFlags(&worker->streams[i], cudaStreamNonBlocking) == cudaSuccess, "a stream");
    need(cudaEventCreateWithFlags(&worker->event, cudaEventDisableTiming) == cudaSuccess, "an event");
    for (unsigned round = 0; round < process->rounds; round++) {
        play_round(worker);
        if (round % 24 == 23)
            need(gpupool_trim(process->client, NULL) == 0, "trim");
        if (round % 64 == 63) /* the launch queue is not what is tested */
            for (unsigned i = 0; i < STREAMS; i++)
                need(cudaStreamSynchronize(worker->streams[i]) == cudaSuccess, "a kernel");
    }
    while (worker->n_live > 0)
        release(worker, &worker->live[--worker->n_live]);
    for (unsigned i = 0; i < STREAMS; i++)
        need(cudaStreamSynchronize(worker->streams[i]) == cudaSuccess, "a kernel");
    return NULL;
}

static int play_process(unsigned number, unsigned n_threads, unsigned rounds) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    static struct process process;
    static struct worker workers[THREADS_MAX];
    unsigned kernels = 0;

    options.flags = number % 2 == 1 && !has_arenas ? GPUPOOL_OPEN_NO_CACHE : 0;
    need(gpupool_open(&options, &process.client) == 0, "open");
    need(gpupool_gpu_kind(process.client) == GPUPOOL_GPU_CUDA, "the daemon serves real GPUs");
    need(gpupool_device_pool(process.client, 0, &process.device_pool) == 0 &&
             gpupool_host_pool(process.client, -1, &process.host_pool) == 0,
         "pools");
    need(cudaHostAlloc((void **)&process.foreign, sizeof *process.foreign, cudaHostAllocDefault) == cudaSuccess,
         "a counter");
    *process.foreign = 0;
    pthread_mutex_init(&process.exchange.lock, NULL);
    process.rounds = rounds;
    for (unsigned i = 0; i < n_threads; i++) {
        workers[i].process = &process;
        workers[i].number = i;
        workers[i].state = number * 1000 + i;
        need(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) == 0, "a thread");
    }
    for (unsigned i = 0; i < n_threads; i++) {
        pthread_join(workers[i].thread, NULL);
        kernels += workers[i].kernels;
    }
    while (process.exchange.count > 0)
        release(&workers[0], &process.exchange.held[--process.exchange.count]);
    gpupool_close(process.client);
    unsigned long long foreign = __atomic_load_n(process.foreign, __ATOMIC_RELAXED);
    printf("process %u (%s): %u kernels, %llu foreign words seen\n", number,
           options.flags == 0 ? "with a cache" : "without a cache", kernels, foreign);
    return foreign > 0 ? FOREIGN : 0;
}

/* Starts the processes and waits for them. They are this program again: CUDA does not survive a fork. */
static int play_all(const char *program, unsigned n_processes, unsigned n_threads, unsigned rounds, bool in_arenas) {
    char configuration[] = "/tmp/stream_order.XXXXXX";
    static const char text[] = "[device]\nlimit = " DEVICE_LIMIT "\nstep = 16MiB\n[host]\nlimit = " HOST_LIMIT
                               "\nstep = 16MiB\n";
    static const char arenas_text[] = "[device]\nexport = vmm\nlimit = " ARENAS_LIMIT "\n[host]\nlimit = " HOST_LIMIT "\n";
    need(device_export_write_config(configuration, in_arenas ? arenas_text : text), "a configuration file");
    const char *arguments[] = {"--gpu", "cuda", "--config", configuration, "--log-level", "warning", NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    pid_t pids[64];
    int worst = 0;

    options.socket = "private";
    options.daemon_arguments = arguments;
    need(gpupool_open(&options, &client) == 0, "starting a daemon");
    unlink(configuration);
    setenv("GPUPOOL_SOCKET", gpupool_socket_path(client), 1);
    if (in_arenas)
        setenv("GPUPOOL_ARENAS", "1", 1);
    for (unsigned i = 0; i < n_processes; i++) {
        char number[16], threads[16], count[16];
        snprintf(number, sizeof number, "%u", i);
        snprintf(threads, sizeof threads, "%u", n_threads);
        snprintf(count, sizeof count, "%u", rounds);
        pids[i] = fork();
        if (pids[i] == 0) {
            execl(program, program, "--process", number, threads, count, in_arenas ? "arenas" : "extents", (char *)NULL);
            _exit(1);
        }
        need(pids[i] > 0, "fork");
    }
    for (unsigned i = 0; i < n_processes; i++) {
        int status = 0;
        waitpid(pids[i], &status, 0);
        int result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        if (result != 0 && worst != 1)
            worst = result == FOREIGN ? FOREIGN : 1;
    }
    gpupool_close(client);
    printf("%s\n", worst == 0         ? "no foreign write was seen"
                   : worst == FOREIGN ? "FOREIGN WRITES: blocks were handed on while kernels used them"
                                      : "a process failed");
    return worst;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 6 && strcmp(argv[1], "--process") == 0) {
        has_arenas = strcmp(argv[5], "arenas") == 0;
        return play_process((unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]), (unsigned)atoi(argv[4]));
    }
    const char *program = argv[0];
    bool in_arenas = argc > 1 && strcmp(argv[1], "--arenas") == 0;
    unsigned rounds = 400, n_threads = 4, n_processes = in_arenas ? ARENAS_PROCESSES : 4;

    argc -= in_arenas;
    argv += in_arenas;
    for (int i = 1; i + 1 < argc; i += 2) {
        unsigned value = (unsigned)strtoul(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--rounds") == 0)
            rounds = value;
        else if (strcmp(argv[i], "--threads") == 0 && value <= THREADS_MAX)
            n_threads = value;
        else if (strcmp(argv[i], "--processes") == 0 && value <= 64)
            n_processes = value;
        else
            return 2;
    }
    return play_all(program, n_processes, n_threads, rounds, in_arenas);
}
