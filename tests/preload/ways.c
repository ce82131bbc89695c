/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that reaches the CUDA driver by ways on which hooks of dlsym() are known to lose a call, and that ends or forks at a bad
 * moment: "ways NAME [LIBRARY]". It is linked to the fake driver. Each part checks that its memory is the pool's.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/preload/fake_libcuda.h"
#include "tests/preload/program.h"

#define THREADS 4u

static const char *library; /* the second argument: one that is linked to the driver */

static bool lent(uint64_t memory) {
    return is_lent((void *)(uintptr_t)memory);
}

static uint64_t must_alloc(size_t size_bytes) {
    uint64_t memory = 0;
    CHECK(cuMemAlloc_v2(&memory, size_bytes) == 0 && lent(memory));
    return memory;
}

static void use(void *alloc, void *release) {
    int (*allocate)(uint64_t *, size_t), (*give_back)(uint64_t);
    uint64_t p = 0;

    *(void **)&allocate = alloc;
    *(void **)&give_back = release;
    CHECK(allocate != NULL && give_back != NULL && allocate(&p, MIB) == 0 && lent(p));
    memset((void *)(uintptr_t)p, 1, MIB);
    CHECK(give_back(p) == 0 && !lent(p) && fake_driver_counts().frees == 0);
}

static void use_of(void *handle) {
    CHECK(handle != NULL);
    use(dlsym(handle, "cuMemAlloc_v2"), dlsym(handle, "cuMemFree_v2"));
}

static void *load_and_use(void *flags) {
    void *plugin = dlopen(library, *(int *)flags);

    fake_use_primary();
    CHECK(plugin != NULL);
    use(dlsym(plugin, "linked_alloc"), dlsym(plugin, "linked_free"));
    CHECK(dlclose(plugin) == 0);
    return NULL;
}

/* A plug-in whose references are bound to its own dependencies first. It is loaded again after it was unloaded, by other threads, too. */
static void plugin(void) {
    static const int flags[] = {RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND, RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND,
                                RTLD_NOW | RTLD_GLOBAL, RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND};
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        load_and_use((void *)&flags[i]);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, load_and_use, (void *)&flags[i]) == 0);
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Several handles of one library, some of which are closed before they are used up. */
static void handles(void) {
    void *first = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL),
         *second = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL),
         *third = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *itself = dlopen(NULL, RTLD_NOW);

    use_of(first);
    use_of(second);
    use_of(third);
    use_of(itself);
    use(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), dlsym(RTLD_NEXT, "cuMemFree_v2"));
    CHECK(dlclose(first) == 0 && dlclose(second) == 0);
    use_of(third);
    use_of(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL));
    /* what the pool does not serve, and what is not there, are the driver's */
    CHECK(dlsym(third, "cuCtxSynchronize") == dlsym(RTLD_DEFAULT, "cuCtxSynchronize"));
    CHECK(dlsym(third, "cuNoSuchFunction") == NULL && dlerror() != NULL);
}

/* cuGetProcAddress() of the versions for which runtimes of CUDA 11, 12 and 13 ask. */
static void versions(void) {
    static const int wanted[] = {11000, 11030, 11080, 12000, 12080, 13000, 13010};
    int (*first)(const char *, void **, int, uint64_t),
        (*second)(const char *, void **, int, uint64_t, int *);
    void *alloc, *release, *driver = dlopen("libcuda.so.1", RTLD_NOW);

    CHECK(driver != NULL);
    *(void **)&first = dlsym(driver, "cuGetProcAddress");
    *(void **)&second = dlsym(driver, "cuGetProcAddress_v2");
    CHECK(first != NULL && second != NULL);
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++)
        for (uint64_t flags = 0; flags <= CUDA_PROC_PER_THREAD; flags++) {
            int status = 7;
            CHECK(first("cuMemAlloc", &alloc, wanted[i], flags) == 0 &&
                  first("cuMemFree", &release, wanted[i], flags) == 0);
            use(alloc, release);
            CHECK(second("cuMemAlloc", &alloc, wanted[i], flags, &status) == 0 && status == 0);
            CHECK(second("cuMemFree", &release, wanted[i], flags, NULL) == 0);
            use(alloc, release);
            /* the function that a runtime asks next; CUDA 11.0 has none */
            void *next = NULL;
            CHECK((first("cuGetProcAddress", &next, wanted[i], flags) == 0) == (wanted[i] >= 11030));
            if (wanted[i] >= 12000) {
                *(void **)&second = next;
                CHECK(second("cuMemAlloc", &alloc, wanted[i], flags, &status) == 0 && status == 0);
                use(alloc, release);
            }
        }
}

/* Forked before the first use. One child ends, another one is killed in the middle: the parent gets their memory, of a pool of 64 MiB. */
static void children(void) {
    int ends[2], status;
    char byte;

    for (unsigned i = 0; i < 2; i++) {
        CHECK(pipe(ends) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            must_alloc(40 * MIB);
            CHECK(write(ends[1], "x", 1) == 1);
            while (i == 1)
                CHECK(cuMemFree_v2(must_alloc(MIB)) == 0);
            exit(0);
        }
        close(ends[1]);
        CHECK(read(ends[0], &byte, 1) == 1);
        if (i == 1)
            CHECK(kill(child, SIGKILL) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(i == 1 ? WIFSIGNALED(status) : status == 0);
        close(ends[0]);
    }
    must_alloc(40 * MIB);
}

static void *work(void *argument) {
    fake_use_primary();
    for (unsigned i = *(unsigned *)argument;; i++) {
        uint64_t p = must_alloc(1 + (i * 99991u) % (4 * MIB));
        CHECK((i % 2 == 0 ? cuMemFree_v2(p) : cuMemFreeAsync(p, NULL)) == 0);
    }
    return NULL;
}

/* Threads allocate and free until the test kills the program. */
static void endless(void) {
    static unsigned numbers[THREADS];
    pthread_t threads[THREADS];

    must_alloc(20 * MIB);
    for (unsigned i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    wait_for_test("works");
    _exit(1); /* the test does not answer */
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"plugin", plugin},
                 {"handles", handles},
                 {"versions", versions},
                 {"children", children},
                 {"endless", endless}};

    library = argc > 2 ? argv[2] : NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (argc > 1 && strcmp(argv[1], parts[i].name) == 0) {
            fake_use_primary();
            parts[i].run();
            return 0;
        }
    fprintf(stderr, "no such part\n");
    return 2;
}
