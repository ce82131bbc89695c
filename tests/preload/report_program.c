/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program for the report of gpupoolctl run: "report_program PART [LIBRARY]" asks the fake driver for memory
 * of all kinds, and ends in the way that its part is about.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/fake_libcuda.h"
#include "tests/preload/fake_order.h"
#include "tests/preload/fake_unserved.h"
#include "tests/preload/program.h"

static const char *library; /* the second argument */

static uint64_t must_alloc(size_t size_bytes) {
    uint64_t memory = 0;
    CHECK(cuMemAlloc_v2(&memory, size_bytes) == 0 && is_lent((void *)(uintptr_t)memory));
    return memory;
}

/* One call of each kind: the bytes are 1, 2, 4 … MiB, so that a row cannot be taken for another. */
static void all(void) {
    const struct cuda_allocation on_device = {1, 1, 1, 0}, on_host = {1, 1, 3, 0};
    const struct cuda_array flat = {1024, 512, 0x20, 4};             /* 8 MiB of floats */
    const struct cuda_array_3d deep = {256, 256, 64, 0x10, 2, 0};    /* 16 MiB of halves */
    const struct cuda_array_3d levels = {4096, 4096, 0, 0x01, 1, 0}; /* 16 and 4 MiB of bytes */
    uint64_t p = must_alloc(3 * MIB), q = must_alloc(MIB), m = 0;
    void *host, *array, *pool, *combined;
    static char registered[4096];

    CHECK(cuMemAllocHost_v2(&host, 2 * MIB) == 0 && is_lent(host));
    CHECK(cuMemAllocManaged(&m, 5 * MIB, 1) == 0 && cuMemAllocManaged(&m, 6 * MIB, 1) == 0);
    CHECK(cuMemAllocManaged(&m, 0, 1) == CUDA_INVALID_VALUE); /* a failure does not count */
    CHECK(cuMemPoolCreate(&pool, NULL) == 0 && cuMemAllocFromPoolAsync(&m, 7 * MIB, pool, NULL) == 0);
    CHECK(cuMemCreate(&m, 20 * MIB, &on_device, 0) == 0 && cuMemCreate(&m, 22 * MIB, &on_host, 0) == 0);
    CHECK(cuArrayCreate_v2(&array, &flat) == 0 && cuArray3DCreate_v2(&array, &deep) == 0);
    CHECK(cuMipmappedArrayCreate(&array, &levels, 2) == 0);
    CHECK(cuMemHostAlloc(&combined, 9 * MIB, CUDA_HOST_WRITE_COMBINED) == 0 && !is_lent(combined));
    CHECK(cuMemHostRegister_v2(registered, sizeof registered, 0) == 0);
    fake_use_other();
    CHECK(cuMemAlloc_v2(&m, 10 * MIB) == 0 && cuMemAllocHost_v2(&host, 11 * MIB) == 0);
    fake_use_none();
    CHECK(cuMemAlloc_v2(&m, 10 * MIB) != 0); /* without a context the driver fails */
    fake_use_primary();
    CHECK(cuMemAlloc_v2(&m, (size_t)1 << 51) == CUDA_MEMORY_ALLOCATION);
    CHECK(cuMemFree_v2(p) == 0 && cuMemFree_v2(q) == 0);
    q = must_alloc(MIB); /* less than the most */
}

static void capture(void) {
    int (*begin)(size_t);
    void *caller = dlopen(library, RTLD_NOW);
    uint64_t p = 0;

    CHECK(caller != NULL);
    *(void **)&begin = dlsym(caller, "caller_begin_capture");
    CHECK(begin != NULL && begin(5) == 0);
    CHECK(cuMemAllocAsync(&p, MIB, NULL) == 0 && !is_lent((void *)(uintptr_t)p));
}

/* By addresses that the driver gives. */
static void addresses(void) {
    int (*managed)(uint64_t *, size_t, unsigned), (*create)(void **, const struct cuda_array *);
    int (*find)(const char *, void **, int, uint64_t, int *);
    const struct cuda_array flat = {1024, 1024, 0x01, 1};
    uint64_t m = 0;
    void *array;

    CHECK(cuGetProcAddress_v2("cuGetProcAddress", (void **)&find, 13000, 0, NULL) == 0);
    CHECK(find("cuMemAllocManaged", (void **)&managed, 13000, 0, NULL) == 0 && managed(&m, MIB, 1) == 0);
    CHECK(find("cuArrayCreate", (void **)&create, 13000, 0, NULL) == 0 && create(&array, &flat) == 0);
}

/* The calls of a library that has the real driver. */
static void communication(void) {
    int (*managed)(uint64_t *, size_t), (*alloc)(uint64_t *, size_t);
    void *caller = dlopen(library, RTLD_NOW);
    uint64_t p = 0;

    CHECK(caller != NULL);
    *(void **)&alloc = dlsym(caller, "linked_alloc");
    *(void **)&managed = dlsym(caller, "linked_managed");
    CHECK(alloc(&p, MIB) == 0 && !is_lent((void *)(uintptr_t)p));
    CHECK(managed(&p, MIB) == 0);
}

static void hooks(void) { /* without a report, references are the driver's own */
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*managed)(uint64_t *, size_t, unsigned);
    uint64_t m = 0;
    Dl_info info;

    *(void **)&managed = dlsym(driver, "cuMemAllocManaged");
    CHECK(managed != NULL && managed(&m, MIB, 1) == 0);
    CHECK(dladdr((void *)managed, &info) != 0);
    printf("%s\n", strstr(info.dli_fname, "preload") != NULL && strstr(info.dli_fname, "libgpupool") != NULL
                       ? "counted"
                       : "real");
}

static void nothing(void) {}

static void underscore(void) {
    must_alloc(MIB);
    _exit(3);
}

static void capital(void) {
    must_alloc(MIB);
    _Exit(4);
}

/* The child has counts of its own, and ends by _exit() as Python's workers do. */
static void forks(void) {
    int status;

    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        fake_use_primary();
        must_alloc(2 * MIB);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    must_alloc(4 * MIB);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) /* asked for nothing */
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A child in its parent's memory reports nothing, and takes nothing from the parent's report. */
static void vforks(void) {
    int status;

    must_alloc(4 * MIB);
    pid_t child = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork): as posix_spawn() does */
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void *goes_on(void *argument) {
    uint64_t m;

    (void)argument;
    for (;;)
        (void)cuMemAllocManaged(&m, MIB, 1);
    return NULL;
}

/* Threads are in the middle of calls when the process ends. */
static void threads(void) {
    pthread_t thread;

    for (unsigned i = 0; i < 3; i++)
        CHECK(pthread_create(&thread, NULL, goes_on, NULL) == 0);
    must_alloc(MIB);
    exit(5);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {
        {"all", all},     {"capture", capture}, {"addresses", addresses},   {"communication", communication},
        {"hooks", hooks}, {"nothing", nothing}, {"underscore", underscore}, {"capital", capital},
        {"forks", forks}, {"vforks", vforks},   {"threads", threads},
    };

    if (argc < 2)
        return 2;
    library = argc > 2 ? argv[2] : NULL;
    fake_use_primary();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(argv[1], parts[i].name) == 0) {
            parts[i].run();
            return 0;
        }
    return 2;
}
