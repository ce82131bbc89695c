/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA program, as far as memory goes, linked against the fake runtime 13 over the fake driver: "program
 * NAME" does one thing and checks what it sees. Without the preload library each of its checks of whose memory it is fails.
 */
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/fake_cudart.h"
#include "tests/preload/fake_order.h"
#include "tests/preload/program.h"

#define STREAM_PER_THREAD ((void *)2)

static void *must_malloc(size_t size_bytes) {
    void *memory = NULL;
    CHECK(cudaMalloc(&memory, size_bytes) == 0 && memory != NULL);
    return memory;
}

/* Device memory and host memory are lent, usable, and come back after a wait for the device. */
static void memory(void) {
    struct cuda_pitched box;
    size_t pitch = 0;
    unsigned flags = 0;
    void *p = must_malloc(3 * MIB), *rows, *host, *mapped;

    CHECK(is_lent(p) && fake_driver_counts().primaries_made == 1);
    memset(p, 1, 3 * MIB); /* a simulated GPU's memory is ordinary memory */
    CHECK(cudaMallocPitch(&rows, &pitch, 1000, 10) == 0 && is_lent(rows) && pitch == 1024);
    CHECK(cudaMalloc3D(&box, (struct cuda_extent){100, 10, 10}) == 0 && is_lent(box.memory));
    CHECK(box.pitch == 512 && box.width == 100 && box.height == 10);
    CHECK(cudaMallocHost(&host, MIB) == 0 && is_lent(host));
    CHECK(cudaHostAlloc(&mapped, MIB, CUDA_HOST_MAPPED | CUDA_HOST_PORTABLE) == 0 && is_lent(mapped));
    CHECK(cudaHostGetFlags(&flags, mapped) == 0 && (flags & CUDA_HOST_MAPPED) != 0);
    memset(host, 2, MIB);
    CHECK(fake_driver_counts().allocations == 0 && fake_driver_counts().waits == 0);

    CHECK(cudaFree(p) == 0 && fake_driver_counts().waits == 1 && !is_lent(p));
    CHECK(cudaFree(rows) == 0 && cudaFree(box.memory) == 0);
    CHECK(cudaFreeHost(host) == 0 && cudaFreeHost(mapped) == 0);
    CHECK(fake_driver_counts().waits == 5 && fake_driver_counts().frees == 0);
    CHECK(fake_driver_counts().primaries_made == 1 && cudaPeekAtLastError() == 0);
}

#define OWN_POOL ((void *)8) /* of the program */

/* Calls that the pools do not serve are CUDA's. */
static void others(void) {
    void *p = (void *)1, *combined, *stream_ordered;

    CHECK(cudaMalloc(&p, 0) == 0 && p == NULL);
    CHECK(cudaMalloc(NULL, 1) == CUDA_INVALID_VALUE && cudaGetLastError() == CUDA_INVALID_VALUE);
    CHECK(cudaHostAlloc(&combined, MIB, 4) == 0 && !is_lent(combined)); /* WriteCombined */
    CHECK(cudaMallocFromPoolAsync(&stream_ordered, MIB, OWN_POOL, NULL) == 0 && !is_lent(stream_ordered));
    CHECK(fake_driver_counts().allocations == 2);
    must_malloc(MIB);
    CHECK(cudaFreeHost(combined) == 0 && cudaFree(stream_ordered) == 0 && fake_driver_counts().frees == 2);
    CHECK(cudaHostAlloc(&combined, MIB, 1u << 20) == CUDA_INVALID_VALUE);
    CHECK(cudaFree(&p) == CUDA_INVALID_VALUE && cudaGetLastError() == CUDA_INVALID_VALUE);
    CHECK(cudaFree(NULL) == 0 && cudaFreeHost(NULL) == 0 && cudaGetLastError() == 0);
}

/* A pool of 64 MiB. */
static void exhaust(void) {
    void *held[64], *p = (void *)1;
    unsigned count = 0;

    while (count < 64 && cudaMalloc(&held[count], 10 * MIB) == 0)
        CHECK(is_lent(held[count++]));
    CHECK(count >= 5 && count <= 6);
    CHECK(held[count] == NULL && cudaPeekAtLastError() == CUDA_MEMORY_ALLOCATION);
    CHECK(cudaGetLastError() == CUDA_MEMORY_ALLOCATION && cudaGetLastError() == 0);
    CHECK(cudaMalloc(&p, SIZE_MAX) == CUDA_MEMORY_ALLOCATION && p == NULL);
    CHECK(cudaMalloc(&p, (size_t)1 << 40) == CUDA_MEMORY_ALLOCATION && p == NULL);
    CHECK(cudaMallocHost(&p, (size_t)1 << 40) == CUDA_MEMORY_ALLOCATION && p == NULL);
    CHECK(cudaGetLastError() == CUDA_MEMORY_ALLOCATION && cudaGetLastError() == 0);
    CHECK(fake_driver_counts().allocations == 0 && fake_driver_counts().frees == 0);
    CHECK(cudaFree(held[0]) == 0);
    held[0] = must_malloc(10 * MIB); /* what a framework does: it frees, and tries again */
    CHECK(is_lent(held[0]));
    while (count > 0)
        CHECK(cudaFree(held[--count]) == 0);
}

/* A second free is an error, and frees nothing else. */
static void twice(void) {
    void *p = must_malloc(MIB);

    CHECK(cudaFree(p) == 0);
    CHECK(cudaFree(p) == CUDA_INVALID_VALUE && cudaGetLastError() == CUDA_INVALID_VALUE);
    CHECK(cudaFree((char *)must_malloc(MIB) + 512) == CUDA_INVALID_VALUE);
}

/* In stream order: nothing waits. */
static void async(void) {
    for (unsigned i = 0; i < 20; i++) {
        CHECK(cudaFreeAsync(must_malloc(20 * MIB), NULL) == 0);
        CHECK(cudaFreeAsync(must_malloc(20 * MIB), (void *)1) == 0);
        CHECK(cudaFreeAsync_ptsz(must_malloc(20 * MIB), NULL) == 0);
        CHECK(cudaFreeAsync(must_malloc(20 * MIB), STREAM_PER_THREAD) == 0);
    }
    CHECK(fake_driver_counts().waits == 0 && fake_driver_counts().frees == 0);
    void *own, *p, *pool;
    CHECK(cudaMallocFromPoolAsync(&own, MIB, OWN_POOL, NULL) == 0 && cudaFreeAsync(own, NULL) == 0);
    CHECK(fake_driver_counts().allocations == 1 && fake_driver_counts().frees == 1);
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0) == 0);
    for (unsigned i = 0; i < 20; i++) {
        CHECK(cudaMallocAsync(&p, 20 * MIB, NULL) == 0 && is_lent(p) && cudaFreeAsync(p, NULL) == 0);
        CHECK(cudaMallocAsync_ptsz(&p, 20 * MIB, NULL) == 0 && is_lent(p) &&
              cudaFreeAsync_ptsz(p, NULL) == 0);
        CHECK(cudaMallocFromPoolAsync(&p, 20 * MIB, pool, (void *)1) == 0 && is_lent(p));
        CHECK(cudaFreeAsync(p, STREAM_PER_THREAD) == 0);
    }
    CHECK(fake_driver_counts().waits == 0 && fake_driver_counts().allocations == 1);
    CHECK(cudaMallocAsync(&p, MIB, NULL) == 0 && cudaFree(p) == 0 && fake_driver_counts().waits == 1 &&
          !is_lent(p));
    CHECK(cudaMallocAsync(&p, (size_t)1 << 40, NULL) == CUDA_MEMORY_ALLOCATION);
    CHECK(cudaGetLastError() == CUDA_MEMORY_ALLOCATION);
    CHECK(cudaStreamBeginCapture((void *)5, 0) == 0 && cudaMallocAsync(&p, MIB, (void *)5) == 0 &&
          !is_lent(p));
    CHECK(cudaStreamEndCapture((void *)5, &own) == 0);
}

/* The pool's limit, and how much of it can be lent: 64 MiB. */
static void info(void) {
    size_t free_bytes = 0, total_bytes = 0, less = 0;

    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes) == 0);
    CHECK(total_bytes == 64 * MIB && free_bytes == 64 * MIB);
    must_malloc(20 * MIB);
    CHECK(cudaMemGetInfo(&less, &total_bytes) == 0 && less <= 44 * MIB && less >= 30 * MIB);
}

static void *allocate_in_thread(void *argument) {
    *(void **)argument = must_malloc(MIB);
    return NULL;
}

/* While a stream is captured, memory can be allocated, by any thread, and a wait for the device harms it. */
static void capture(void) {
    pthread_t thread;
    void *p = must_malloc(MIB), *q, *graph;

    CHECK(cudaStreamBeginCapture((void *)5, 0) == 0);
    CHECK(pthread_create(&thread, NULL, allocate_in_thread, &q) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(is_lent(q) && cudaMalloc(&q, (size_t)1 << 40) == CUDA_MEMORY_ALLOCATION && cudaGetLastError() == 2);
    CHECK(fake_driver_counts().unsafe == 0);
    CHECK(cudaFree(p) == CUDA_CAPTURE_UNSUPPORTED && cudaGetLastError() == CUDA_CAPTURE_UNSUPPORTED);
    CHECK(is_lent(p));
    CHECK(cudaStreamEndCapture((void *)5, &graph) == FAKE_CAPTURE_INVALIDATED && cudaGetLastError() != 0);
    CHECK(cudaFree(p) == 0 && !is_lent(p));
}

/* An error of the device that stays is what every call says. */
static void sticky(void) {
    void *p = must_malloc(MIB), *q;

    fake_break(710); /* cudaErrorAssert */
    CHECK(cudaMalloc(&q, MIB) == 710 && q == NULL && cudaFree(p) == 710 && cudaGetLastError() == 710);
}

/* Memory of the other device is waited for there. */
static void devices(void) {
    void *first = must_malloc(MIB), *host;
    int device = -1;

    CHECK(cudaSetDevice(1) == 0 && cudaFree(first) == 0 && fake_driver_counts().waits == 1);
    CHECK(cudaGetDevice(&device) == 0 && device == 1);
    CHECK(cudaSetDevice(0) == 0 && cudaMallocHost(&host, MIB) == 0 && cudaFreeHost(host) == 0);
}

static void reset(void) {
    CHECK(cudaDeviceReset() == 0 && fake_driver_counts().resets == 1); /* nothing was lent yet */
    void *p = must_malloc(MIB);
    CHECK(cudaDeviceReset() == 0 && fake_driver_counts().resets == 1 && fake_driver_counts().waits == 1 &&
          is_lent(p));
}

/* A child of a process that used CUDA has none; nothing crashes or hangs, and the parent goes on. */
static void forks(void) {
    void *p = must_malloc(MIB), *host, *q = (void *)1;
    int status;

    CHECK(cudaMallocHost(&host, MIB) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(cudaMalloc(&q, MIB) == CUDA_INITIALIZATION_ERROR && q == NULL);
        CHECK(cudaFree(p) == CUDA_INITIALIZATION_ERROR && cudaFreeHost(host) == CUDA_INITIALIZATION_ERROR);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(is_lent(p) && cudaFree(p) == 0 && is_lent(must_malloc(MIB)));
}

/* A child of one that did not is like any process. */
static void forks_early(void) {
    int status;
    pid_t child = fork();

    if (child == 0) {
        void *p = must_malloc(MIB);
        CHECK(is_lent(p) && cudaFree(p) == 0);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(is_lent(must_malloc(MIB)));
}

/* --- the end of a process --- */

static void *held_at_exit;
static void free_at_exit(void) {
    CHECK(cudaFree(held_at_exit) == 0);
    CHECK(cudaFree(must_malloc(MIB)) == 0);
}

__attribute__((destructor)) static void free_late(void) {
    if (held_at_exit != NULL)
        CHECK(cudaFree(must_malloc(MIB)) == 0);
}

static void *use_memory(void *argument) {
    (void)argument;
    for (;;)
        CHECK(cudaFree(must_malloc(MIB)) == 0);
    return NULL;
}

static void ends(void) {
    pthread_t thread;

    held_at_exit = must_malloc(MIB);
    atexit(free_at_exit);
    CHECK(pthread_create(&thread, NULL, use_memory, NULL) == 0);
    usleep(10000); /* so that it is at work; any moment will do */
}

/* --- two processes --- */

/* Opens the handle in standard input; the bytes go from 1 to 2. */
static void attach(void) {
    struct cuda_ipc_handle handle;
    unsigned char *p, *again;

    CHECK(fread(&handle, sizeof handle, 1, stdin) == 1);
    CHECK(cudaIpcOpenMemHandle((void **)&p, handle, 1) == 0 && p[0] == 1 && p[MIB - 1] == 1);
    CHECK(cudaIpcOpenMemHandle((void **)&again, handle, 1) == 0 && again == p);
    memset(p, 2, MIB);
    CHECK(cudaIpcCloseMemHandle(p) == 0 && p[0] == 2); /* open once more */
    CHECK(cudaIpcCloseMemHandle(p) == 0);
    CHECK(cudaIpcCloseMemHandle(p) == CUDA_INVALID_VALUE && cudaGetLastError() == CUDA_INVALID_VALUE);
    CHECK(cudaIpcOpenMemHandle((void **)&p, handle, 1) == 0 && cudaIpcCloseMemHandle(p) == 0);
    handle.bytes[20] = (char)(handle.bytes[20] + 1); /* a token that no process made */
    CHECK(cudaIpcOpenMemHandle((void **)&p, handle, 1) == CUDA_INVALID_VALUE);
}

static void shares(void) {
    struct cuda_ipc_handle handle, same, foreign;
    unsigned char *p = must_malloc(MIB), *opened;
    void *host, *own;

    memset(p, 1, MIB);
    CHECK(cudaIpcGetMemHandle(&handle, p) == 0 && cudaIpcGetMemHandle(&same, p) == 0);
    CHECK(memcmp(&handle, &same, sizeof handle) == 0);
    FILE *other = popen("\"$TEST_PROGRAM\" attach", "w");
    CHECK(other != NULL && fwrite(&handle, sizeof handle, 1, other) == 1 && pclose(other) == 0);
    CHECK(p[0] == 2 && p[MIB - 1] == 2);
    CHECK(cudaIpcGetMemHandle(&handle, p + 512) == CUDA_INVALID_VALUE);
    CHECK(cudaMallocHost(&host, MIB) == 0 && cudaIpcGetMemHandle(&handle, host) == CUDA_INVALID_VALUE);
    CHECK(cudaFree(p) == 0);
    CHECK(cudaIpcOpenMemHandle((void **)&opened, same, 1) ==
          CUDA_INVALID_VALUE); /* no process holds it any more */
    CHECK(cudaMallocFromPoolAsync(&own, MIB, OWN_POOL, NULL) == 0 && cudaIpcGetMemHandle(&foreign, own) == 0);
    CHECK(cudaIpcOpenMemHandle((void **)&opened, foreign, 1) == 0 && opened == own);
    CHECK(cudaIpcCloseMemHandle(opened) == 0);
}

/* --- many threads --- */

#define THREADS 4
#define ROUNDS  1500

static struct cuda_ipc_handle common;
static void *common_memory;

/* Each thread writes its own pattern into its memory, and no other thread does. */
static void *work(void *argument) {
    unsigned number = *(unsigned *)argument, seed = number;
    unsigned char *held[8] = {0}, *opened;
    size_t size[8] = {0};

    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned slot = (unsigned)rand_r(&seed) % 8;
        if (held[slot] == NULL) {
            size[slot] = 1 + (size_t)rand_r(&seed) % MIB;
            int r = cudaMalloc((void **)&held[slot], size[slot]);
            CHECK(r == 0 || (r == CUDA_MEMORY_ALLOCATION && held[slot] == NULL && cudaGetLastError() == r));
            if (r == 0)
                memset(held[slot], (int)number, size[slot]);
        } else {
            CHECK(held[slot][0] == number && held[slot][size[slot] - 1] == number);
            CHECK((round % 2 == 0 ? cudaFree(held[slot]) : cudaFreeAsync(held[slot], NULL)) == 0);
            held[slot] = NULL;
        }
        if (round % 16 == 0) {
            CHECK(cudaIpcOpenMemHandle((void **)&opened, common, 1) == 0 && opened == common_memory);
            CHECK(cudaIpcCloseMemHandle(opened) == 0);
        }
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    unsigned numbers[THREADS];

    common_memory = must_malloc(MIB);
    CHECK(cudaIpcGetMemHandle(&common, common_memory) == 0);
    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = i + 1;
        CHECK(pthread_create(&thread[i], NULL, work, &numbers[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(cudaFree(common_memory) == 0 && fake_driver_counts().frees == 0);
}

/* --- with the test's help --- */

/* The daemon goes away meanwhile. */
static void lost(void) {
    void *p = must_malloc(40 * MIB), *q;

    wait_for_test("lent");
    memset(p, 3, MIB);
    for (unsigned i = 0; i < 3; i++) {
        q = must_malloc(40 * MIB);
        CHECK(!is_lent(q) && fake_driver_counts().allocations == i + 1);
    }
    CHECK(cudaFree(q) == 0 && cudaFree(p) == 0 && fake_driver_counts().frees == 1);
}

static void holds(void) {
    void *p = must_malloc(20 * MIB), *host;
    CHECK(cudaMallocHost(&host, 10 * MIB) == 0);
    wait_for_test("holds");
    CHECK(cudaFree(p) == 0 && cudaFreeHost(host) == 0);
    wait_for_test("freed");
}

static void holds_more(void) {
    void *p = must_malloc(40 * MIB);
    wait_for_test("holds");
    CHECK(cudaFree(p) == 0);
    wait_for_test("freed");
}

/* Another process has to give up what it keeps. */
static void wants(void) {
    CHECK(is_lent(must_malloc(40 * MIB)));
}

static void wants_all(void) {
    CHECK(is_lent(must_malloc(60 * MIB)));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"memory", memory},
        {"others", others},
        {"exhaust", exhaust},
        {"twice", twice},
        {"async", async},
        {"info", info},
        {"capture", capture},
        {"sticky", sticky},
        {"devices", devices},
        {"reset", reset},
        {"forks", forks},
        {"forks_early", forks_early},
        {"ends", ends},
        {"attach", attach},
        {"shares", shares},
        {"lost", lost},
        {"threads", threads},
        {"holds", holds},
        {"holds_more", holds_more},
        {"wants", wants},
        {"wants_all", wants_all},
    };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (argc == 2 && strcmp(argv[1], parts[i].name) == 0) {
            parts[i].run();
            return 0;
        }
    fprintf(stderr, "no such part\n");
    return 2;
}
