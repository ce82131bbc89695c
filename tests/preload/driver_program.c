/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that calls the CUDA driver, and has no shared runtime: "driver_program NAME [LIBRARY]" does one
 * thing and checks what it sees. It is linked to the fake driver. Without gpupoolctl run each of its checks
 * of whose memory it is fails.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/fake_libcuda.h"
#include "tests/preload/fake_order.h"
#include "tests/preload/program.h"

static const char *library; /* the second argument */

static bool lent(uint64_t memory) {
    return is_lent((void *)(uintptr_t)memory);
}

/* Memory of a pool that the program made. */
static uint64_t must_alloc_own(void) {
    uint64_t memory = 0;
    void *pool = NULL;

    CHECK(cuMemPoolCreate(&pool, NULL) == 0 && cuMemAllocFromPoolAsync(&memory, MIB, pool, NULL) == 0);
    CHECK(memory != 0 && !lent(memory));
    return memory;
}

static uint64_t must_alloc(size_t size_bytes) {
    uint64_t memory = 0;
    CHECK(cuMemAlloc_v2(&memory, size_bytes) == 0 && memory != 0);
    return memory;
}

/* --- the calls, bound at link time --- */

static void memory(void) {
    uint64_t p = must_alloc(3 * MIB), rows;
    size_t pitch = 0;
    unsigned flags = 0;
    void *host, *mapped;

    CHECK(lent(p));
    memset((void *)(uintptr_t)p, 1, 3 * MIB); /* a simulated GPU's memory is ordinary memory */
    CHECK(cuMemAllocPitch_v2(&rows, &pitch, 1000, 10, 4) == 0 && lent(rows) && pitch == 1024);
    CHECK(cuMemAllocHost_v2(&host, MIB) == 0 && is_lent(host));
    CHECK(cuMemHostAlloc(&mapped, MIB, CUDA_HOST_MAPPED | CUDA_HOST_PORTABLE) == 0 && is_lent(mapped));
    CHECK(cuMemHostGetFlags(&flags, mapped) == 0 && (flags & CUDA_HOST_MAPPED) != 0);
    CHECK(fake_driver_counts().allocations == 0 && fake_driver_counts().waits == 0);

    CHECK(cuMemFree_v2(p) == 0 && fake_driver_counts().waits == 1 && !lent(p));
    CHECK(cuMemFree_v2(rows) == 0 && cuMemFreeHost(host) == 0 && cuMemFreeHost(mapped) == 0);
    CHECK(fake_driver_counts().waits == 4 && fake_driver_counts().frees == 0);
}

/* Calls that the pools do not serve are the driver's. */
static void others(void) {
    uint64_t p = 7, own;
    void *combined;
    size_t pitch = 7;

    CHECK(cuMemAlloc_v2(&p, 0) == CUDA_INVALID_VALUE && cuMemAlloc_v2(NULL, 1) == CUDA_INVALID_VALUE);
    CHECK(cuMemAllocPitch_v2(&p, &pitch, 100, 10, 3) == CUDA_INVALID_VALUE && p == 7 && pitch == 7);
    CHECK(cuMemHostAlloc(&combined, MIB, 4) == 0 && !is_lent(combined)); /* WriteCombined */
    own = must_alloc_own();
    CHECK(fake_driver_counts().allocations == 2);
    must_alloc(MIB);
    CHECK(cuMemFreeHost(combined) == 0 && cuMemFreeAsync(own, NULL) == 0 && fake_driver_counts().frees == 2);
    CHECK(cuMemFree_v2((uintptr_t)&p) == CUDA_INVALID_VALUE && cuMemFree_v2(0) == 0);
}

/* A pool of 64 MiB. An out-parameter is written on success alone. */
static void exhaust(void) {
    uint64_t held[64], p = 7;
    void *host = &p;
    size_t pitch = 7;
    unsigned count = 0;

    for (held[0] = 7; count < 63 && cuMemAlloc_v2(&held[count], 10 * MIB) == 0; held[count] = 7)
        CHECK(lent(held[count++]));
    CHECK(count >= 5 && count <= 6 && held[count] == 7);
    CHECK(cuMemAlloc_v2(&p, (size_t)1 << 51) == CUDA_MEMORY_ALLOCATION && p == 7);
    CHECK(cuMemAlloc_v2(&p, SIZE_MAX) == CUDA_MEMORY_ALLOCATION && p == 7);
    CHECK(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX - 5, 2, 4) == CUDA_MEMORY_ALLOCATION && p == 7 &&
          pitch == 7);
    CHECK(cuMemAllocHost_v2(&host, (size_t)1 << 51) == CUDA_MEMORY_ALLOCATION && host == &p);
    CHECK(fake_driver_counts().allocations == 0);
    CHECK(cuMemFree_v2(held[0]) == 0);
    held[0] = must_alloc(10 * MIB);
    CHECK(lent(held[0]));
    while (count > 0)
        CHECK(cuMemFree_v2(held[--count]) == 0);
}

static void twice(void) {
    uint64_t p = must_alloc(MIB);

    CHECK(cuMemFree_v2(p) == 0 && cuMemFree_v2(p) == CUDA_INVALID_VALUE);
    CHECK(cuMemFree_v2(must_alloc(MIB) + 512) == CUDA_INVALID_VALUE);
}

static void async(void) {
    for (unsigned i = 0; i < 20; i++) {
        CHECK(cuMemFreeAsync(must_alloc(20 * MIB), NULL) == 0);
        CHECK(cuMemFreeAsync_ptsz(must_alloc(20 * MIB), NULL) == 0);
        CHECK(cuMemFreeAsync(must_alloc(20 * MIB), CUDA_STREAM_PER_THREAD) == 0);
    }
    CHECK(fake_driver_counts().waits == 0 && fake_driver_counts().frees == 0);
}

/* A stream that a client of gpupool made on its simulated GPU. */
static void *must_make_stream(uint64_t of) {
    int (*lookup)(const void *, void **, void *), (*create)(void *, int, void **);
    void *client = NULL, *stream = NULL;
    char buffer[256];

    *(void **)&lookup = dlsym(RTLD_DEFAULT, "gpupool_lookup");
    *(void **)&create = dlsym(RTLD_DEFAULT, "gpupool_stream_create");
    CHECK(lookup != NULL && create != NULL && lookup((void *)(uintptr_t)of, &client, buffer) == 0);
    CHECK(create(client, 0, &stream) == 0 && stream != NULL);
    return stream;
}

/* Memory of the default pool, taken and freed in the order of a stream. */
static void ordered(void) {
    void *pool = NULL, *own = NULL, *graph;
    uint64_t p = 7;

    CHECK(cuDeviceGetDefaultMemPool(&pool, 0) == 0 && cuMemPoolCreate(&own, NULL) == 0);
    for (unsigned i = 0; i < 20; i++) {
        CHECK(cuMemAllocAsync(&p, 20 * MIB, NULL) == 0 && lent(p) && cuMemFreeAsync(p, NULL) == 0);
        CHECK(cuMemAllocAsync_ptsz(&p, 20 * MIB, NULL) == 0 && lent(p) && cuMemFreeAsync_ptsz(p, NULL) == 0);
        CHECK(cuMemAllocFromPoolAsync(&p, 20 * MIB, pool, CUDA_STREAM_LEGACY) == 0 && lent(p));
        memset((void *)(uintptr_t)p, 1, 20 * MIB);
        CHECK(cuMemFreeAsync(p, CUDA_STREAM_PER_THREAD) == 0 && !lent(p));
        CHECK(cuMemAllocFromPoolAsync_ptsz(&p, 20 * MIB, pool, NULL) == 0 && cuMemFreeAsync(p, NULL) == 0);
    }
    CHECK(fake_driver_counts().waits == 0 && fake_driver_counts().allocations == 0);
    CHECK(cuMemAllocAsync(&p, MIB, NULL) == 0 && cuMemFree_v2(p) == 0 && fake_driver_counts().waits == 1);
    p = 7;
    CHECK(cuMemAllocAsync(&p, (size_t)1 << 51, NULL) == CUDA_MEMORY_ALLOCATION && p == 7);
    CHECK(cuMemAllocAsync(&p, 0, NULL) == CUDA_INVALID_VALUE && p == 7);
    CHECK(cuMemAllocAsync(NULL, MIB, NULL) == CUDA_INVALID_VALUE);
    CHECK(cuMemAllocFromPoolAsync(&p, MIB, NULL, NULL) == CUDA_INVALID_VALUE && p == 7);
    /* the driver's: another pool is the current one; a capture; another context */
    CHECK(cuDeviceSetMemPool(0, own) == 0 && cuMemAllocAsync(&p, MIB, NULL) == 0 && !lent(p));
    CHECK(cuMemFreeAsync(p, NULL) == 0 && fake_driver_counts().frees == 1);
    CHECK(cuMemAllocFromPoolAsync(&p, MIB, pool, NULL) == 0 && lent(p) && cuDeviceSetMemPool(0, pool) == 0);
    CHECK(cuStreamBeginCapture_v2((void *)5, 0) == 0 && cuMemAllocAsync(&p, MIB, (void *)5) == 0 && !lent(p));
    CHECK(cuStreamEndCapture((void *)5, &graph) == 0);
    CHECK(cuStreamBeginCapture_v2_ptsz(NULL, 0) == 0 && cuMemAllocAsync(&p, MIB, NULL) == 0 && !lent(p));
    CHECK(cuStreamEndCapture_ptsz(NULL, &graph) == 0);
    CHECK(cuStreamBeginCaptureToGraph((void *)6, NULL, NULL, NULL, 0, 0) == 0);
    CHECK(cuMemAllocAsync(&p, MIB, NULL) == 0 && !lent(p));
    CHECK(cuStreamDestroy_v2((void *)6) == 0); /* which ends it */
    CHECK(cuMemAllocAsync(&p, MIB, FAKE_FOREIGN_STREAM) == 0 && !lent(p));
    fake_use_other();
    CHECK(cuMemAllocAsync(&p, MIB, NULL) == 0 && !lent(p));
    fake_use_primary();
    CHECK(cuMemAllocAsync(&p, MIB, NULL) == 0 && lent(p));
}

/* A stream that ends leaves nothing behind that the driver would be asked about. */
static void destroys(void) {
    uint64_t first = must_alloc(MIB), p;
    unsigned before;

    for (unsigned i = 0; i < 20; i++) {
        void *stream = must_make_stream(first);
        CHECK(cuMemAllocAsync(&p, 20 * MIB, stream) == 0 && lent(p) && cuMemFreeAsync(p, stream) == 0);
        before = fake_order_counts().destroyed;
        CHECK(cuStreamDestroy_v2(stream) == 0 && fake_order_counts().destroyed == before);
    }
    CHECK(cuMemAllocAsync(&p, 40 * MIB, NULL) == 0 && lent(p)); /* all of it is back */
}

/* Answers about memory on loan tell the allocation, wherever the address lies in it. */
static void answers(void) {
    uint64_t p = must_alloc(3 * MIB), base = 0, start = 0;
    size_t size = 0, length = 0, free_bytes = 0, total_bytes = 0, less = 0;
    int attributes[] = {FAKE_ATTRIBUTE, 11, 12}, of_driver = 0;
    void *values[] = {&of_driver, &start, &length}, *own = (void *)&p;
    bool is_legacy = false;

    CHECK(cuMemGetAddressRange_v2(&base, &size, p + 1000) == 0 && base == p && size == 3 * MIB);
    CHECK(cuMemGetAddressRange_v2(NULL, &size, p) == 0 && cuMemGetAddressRange_v2(&base, NULL, p) == 0);
    CHECK(cuMemGetAddressRange_v2(&base, &size, (uintptr_t)own) == FAKE_NOT_FOUND);
    CHECK(cuPointerGetAttribute(&start, 11, p + MIB) == 0 && start == p);
    CHECK(cuPointerGetAttribute(&length, 12, p + MIB) == 0 && length == 3 * MIB);
    CHECK(cuPointerGetAttribute(&is_legacy, 10, p) == 0 && is_legacy);
    CHECK(cuPointerGetAttribute(&of_driver, FAKE_ATTRIBUTE, p) == FAKE_NOT_FOUND);
    start = length = 0;
    CHECK(cuPointerGetAttributes(3, attributes, values, p + 5) == 0);
    CHECK(of_driver == FAKE_ATTRIBUTE && start == p && length == 3 * MIB);
    CHECK(cuMemGetInfo_v2(&free_bytes, &total_bytes) == 0 && total_bytes == 64 * MIB);
    CHECK(free_bytes <= 61 * MIB && free_bytes >= 50 * MIB);
    must_alloc(20 * MIB);
    CHECK(cuMemGetInfo_v2(&less, &total_bytes) == 0 && less < free_bytes);
    fake_use_other();
    CHECK(cuMemGetInfo_v2(&free_bytes, &total_bytes) == 0 && total_bytes == FAKE_TOTAL_BYTES);
}

/* With the option that asks for it. */
static void gpu_info(void) {
    size_t free_bytes = 0, total_bytes = 0;

    must_alloc(MIB);
    CHECK(cuMemGetInfo_v2(&free_bytes, &total_bytes) == 0);
    CHECK(free_bytes == FAKE_FREE_BYTES && total_bytes == FAKE_TOTAL_BYTES);
}

/* Lent memory is mapped in the primary context: elsewhere memory is the driver's. Freed is it from any. */
static void contexts(void) {
    uint64_t p = must_alloc(MIB), q = must_alloc(MIB), own = 0;
    void *before, *after;

    CHECK(lent(p) && lent(q));
    fake_use_other();
    CHECK(cuCtxGetCurrent(&before) == 0);
    CHECK(cuMemAlloc_v2(&own, MIB) == 0 && !lent(own) && cuMemFree_v2(own) == 0);
    CHECK(cuMemFree_v2(p) == 0 && !lent(p) && fake_driver_counts().waits == 1);
    CHECK(cuMemFreeAsync(q, NULL) == 0 && !lent(q) && fake_driver_counts().waits == 2);
    CHECK(cuCtxGetCurrent(&after) == 0 && after == before);
    fake_use_none();
    own = 7;
    CHECK(cuMemAlloc_v2(&own, MIB) == 201 && own == 7); /* CUDA_ERROR_INVALID_CONTEXT, the driver's */
    fake_use_primary();
    CHECK(lent(p = must_alloc(MIB)));
    fake_use_none();
    CHECK(cuMemFree_v2(p) == 0 && !lent(p) && cuCtxGetCurrent(&after) == 0 && after == NULL);
}

/* A program that makes a context of its own gets no primary one beside it. */
static void own_context(void) {
    uint64_t own = 0;

    CHECK(cuMemAlloc_v2(&own, MIB) == 0 && !lent(own) && cuMemFree_v2(own) == 0);
    CHECK(fake_driver_counts().primaries_made == 0);
}

static void broken(void) {
    uint64_t p = must_alloc(MIB), q = 7;

    fake_break(4); /* as a driver that has ended */
    CHECK(cuMemAlloc_v2(&q, MIB) == 4 && q == 7 && cuMemFree_v2(p) == 4 && lent(p));
}

static void reset(void) {
    CHECK(cuDevicePrimaryCtxReset_v2(0) == 0 && fake_driver_counts().resets == 1); /* nothing was lent yet */
    uint64_t p = must_alloc(MIB);
    CHECK(cuDevicePrimaryCtxReset_v2(0) == 0 && fake_driver_counts().resets == 1 && lent(p));
}

/* --- the ways to a function --- */

static void use(void *alloc, void *release) {
    int (*allocate)(uint64_t *, size_t), (*give_back)(uint64_t);
    uint64_t p = 0;

    *(void **)&allocate = alloc;
    *(void **)&give_back = release;
    CHECK(allocate != NULL && give_back != NULL && allocate(&p, MIB) == 0 && lent(p));
    CHECK(give_back(p) == 0 && !lent(p) && fake_driver_counts().frees == 0);
}

static void by_dlsym(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    CHECK(driver != NULL);
    use(dlsym(driver, "cuMemAlloc_v2"), dlsym(driver, "cuMemFree_v2"));
    use(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), dlsym(RTLD_NEXT, "cuMemFree_v2"));
    CHECK(dlsym(driver, "cuNoSuchFunction") == NULL && dlerror() != NULL);
}

/* A library whose references are bound to its own dependencies first. */
static void by_library(void) {
    void *caller = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);

    CHECK(caller != NULL);
    use(dlsym(caller, "linked_alloc"), dlsym(caller, "linked_free"));
}

/* A library with the name of one that has the real driver. */
static void by_communication(void) {
    int (*alloc)(uint64_t *, size_t), (*release)(uint64_t);
    void *caller = dlopen(library, RTLD_NOW);
    uint64_t p = 0, q = must_alloc(MIB);

    CHECK(caller != NULL && lent(q));
    *(void **)&alloc = dlsym(caller, "linked_alloc");
    *(void **)&release = dlsym(caller, "linked_free");
    CHECK(alloc(&p, MIB) == 0 && !lent(p) && release(p) == 0 && fake_driver_counts().frees == 1);
}

/* While a stream is captured, memory can be allocated, but not in stream order: the graph has its own. The
 * library brings the runtime in which it is captured. */
static void capture(void) {
    int (*begin)(size_t), (*end)(size_t);
    void *caller = dlopen(library, RTLD_NOW);
    uint64_t p = 0;

    CHECK(caller != NULL);
    *(void **)&begin = dlsym(caller, "caller_begin_capture");
    *(void **)&end = dlsym(caller, "caller_end_capture");
    CHECK(begin != NULL && end != NULL && begin(5) == 0);
    CHECK(lent(must_alloc(MIB)) && fake_driver_counts().allocations == 0);
    CHECK(cuMemAllocAsync(&p, MIB, (void *)5) == 0 && !lent(p) && fake_driver_counts().allocations == 1);
    CHECK(end(5) == 0 && cuMemFree_v2(p) == 0 && lent(must_alloc(MIB)));
}

/* Whether a function is the preload library's. */
static bool is_ours(const void *function) {
    Dl_info info;
    return dladdr(function, &info) != 0 && strstr(info.dli_fname, "libgpupool-preload") != NULL;
}

/* Found by the driver's own function, of two versions, which is found by itself, too. */
static void by_address(void) {
    int (*first)(const char *, void **, int, uint64_t),
        (*second)(const char *, void **, int, uint64_t, int *);
    static const char *const names[] = {"cuMemAllocAsync",      "cuMemAllocFromPoolAsync",
                                        "cuStreamBeginCapture", "cuStreamEndCapture",
                                        "cuStreamDestroy",      "cuMemGetInfo",
                                        "cuMemGetAddressRange", "cuPointerGetAttribute"};
    void *alloc = NULL, *release = NULL, *old = (void *)1;
    int status = 7;

    CHECK(cuGetProcAddress("cuMemAlloc", &alloc, 11030, 0) == 0);
    CHECK(cuGetProcAddress("cuMemFree", &release, 11030, 0) == 0);
    use(alloc, release);
    CHECK(cuGetProcAddress_v2("cuGetProcAddress", (void **)&second, 13000, 0, NULL) == 0);
    CHECK(second("cuMemAlloc", &alloc, 13000, 1, &status) == 0 && status == 0);
    CHECK(second("cuMemFree", &release, 13000, CUDA_PROC_PER_THREAD, &status) == 0);
    use(alloc, release);
    CHECK(second("cuMemFreeAsync", &release, 12000, CUDA_PROC_PER_THREAD, NULL) == 0);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK(second(names[i], &alloc, 13000, 0, NULL) == 0 && is_ours(alloc));
        CHECK(second(names[i], &release, 13000, CUDA_PROC_PER_THREAD, NULL) == 0 && is_ours(release));
        CHECK((release == alloc) == (i >= 4)); /* those behind have one default stream */
    }
    *(void **)&second = dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
    CHECK(second("cuGetProcAddress", (void **)&first, 11030, 0, NULL) == 0);
    CHECK(first("cuMemAlloc", &alloc, 12080, 0) == 0 && first("cuMemFree", &release, 12080, 0) == 0);
    use(alloc, release);
    /* what is not served, or is not there, is as the driver says */
    CHECK(first("cuCtxSynchronize", &alloc, 12000, 0) == 0 &&
          alloc == dlsym(RTLD_DEFAULT, "cuCtxSynchronize"));
    CHECK(second("cuMemAlloc", &old, 3000, 0, NULL) == 0 && old == dlsym(RTLD_DEFAULT, "cuMemAlloc"));
    CHECK(second("cuMemAlloc", &old, 1000, 0, &status) != 0 && old == NULL && status == 1);
    CHECK(second("cuNoSuchFunction", &old, 13000, 0, &status) != 0 && old == NULL && status == 1);
}

/* --- processes --- */

static void attach(void) {
    struct cuda_ipc_handle handle;
    uint64_t p = 0, again = 0;

    CHECK(fread(&handle, sizeof handle, 1, stdin) == 1);
    CHECK(cuIpcOpenMemHandle_v2(&p, handle, 1) == 0 && *(char *)(uintptr_t)p == 1);
    CHECK(cuIpcOpenMemHandle_v2(&again, handle, 1) == 0 && again == p);
    memset((void *)(uintptr_t)p, 2, MIB);
    CHECK(cuIpcCloseMemHandle(p) == 0 && cuIpcCloseMemHandle(p) == 0);
    handle.bytes[20] = (char)(handle.bytes[20] + 1); /* a token that no process made */
    p = 7;
    CHECK(cuIpcOpenMemHandle_v2(&p, handle, 1) == CUDA_INVALID_VALUE && p == 7);
}

/* Children inherit the libraries. */
static void shares(void) {
    struct cuda_ipc_handle handle, foreign;
    uint64_t p = must_alloc(MIB), own, opened = 0;
    FILE *other;

    memset((void *)(uintptr_t)p, 1, MIB);
    CHECK(cuIpcGetMemHandle(&handle, p) == 0);
    other = popen("\"$DRIVER_PROGRAM\" attach", "w");
    CHECK(other != NULL && fwrite(&handle, sizeof handle, 1, other) == 1 && pclose(other) == 0);
    CHECK(((char *)(uintptr_t)p)[MIB - 1] == 2 && cuMemFree_v2(p) == 0);
    own = must_alloc_own();
    CHECK(cuIpcGetMemHandle(&foreign, own) == 0);
    CHECK(cuIpcOpenMemHandle_v2(&opened, foreign, 1) == 0 && opened == own && cuIpcCloseMemHandle(own) == 0);
}

static void forks_early(void) {
    int status;
    pid_t child = fork();

    if (child == 0) {
        uint64_t p = must_alloc(MIB);
        CHECK(lent(p) && cuMemFree_v2(p) == 0);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(lent(must_alloc(MIB)));
}

#define THREADS 4

static void *work(void *argument) {
    unsigned char number = *(unsigned char *)argument;

    fake_use_primary();
    for (unsigned i = 0; i < 500; i++) {
        size_t size = 1 + (i * 997u) % MIB;
        uint64_t p = must_alloc(size);
        memset((void *)(uintptr_t)p, number, size);
        CHECK(((unsigned char *)(uintptr_t)p)[size - 1] == number && lent(p));
        CHECK((i % 2 == 0 ? cuMemFree_v2(p) : cuMemFreeAsync(p, NULL)) == 0);
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    unsigned char numbers[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = (unsigned char)(i + 1);
        CHECK(pthread_create(&thread[i], NULL, work, &numbers[i]) == 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(fake_driver_counts().allocations == 0 && fake_driver_counts().frees == 0);
}

/* --- with the test's help --- */

static void holds(void) {
    uint64_t p = must_alloc(20 * MIB);
    void *host;
    CHECK(cuMemAllocHost_v2(&host, 10 * MIB) == 0);
    wait_for_test("holds");
    CHECK(cuMemFree_v2(p) == 0 && cuMemFreeHost(host) == 0);
}

/* The daemon goes away meanwhile. */
static void lost(void) {
    uint64_t p = must_alloc(40 * MIB), q;

    wait_for_test("lent");
    q = must_alloc(40 * MIB);
    CHECK(!lent(q) && fake_driver_counts().allocations == 1);
    CHECK(cuMemFree_v2(q) == 0 && cuMemFree_v2(p) == 0 && fake_driver_counts().frees == 1);
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
        {"ordered", ordered},
        {"destroys", destroys},
        {"answers", answers},
        {"gpu_info", gpu_info},
        {"contexts", contexts},
        {"own_context", own_context},
        {"broken", broken},
        {"reset", reset},
        {"by_dlsym", by_dlsym},
        {"by_library", by_library},
        {"by_address", by_address},
        {"by_communication", by_communication},
        {"capture", capture},
        {"attach", attach},
        {"shares", shares},
        {"forks_early", forks_early},
        {"threads", threads},
        {"holds", holds},
        {"lost", lost},
    };

    library = argc > 2 ? argv[2] : NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (argc > 1 && strcmp(argv[1], parts[i].name) == 0) {
            if (parts[i].run == own_context)
                fake_use_other();
            else
                fake_use_primary();
            parts[i].run();
            return 0;
        }
    fprintf(stderr, "no such part\n");
    return 2;
}
