/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program without a CUDA runtime of its own that loads libraries which bring one, with RTLD_LOCAL: "loader
 * LIBRARY…". With two, each gets its own runtime's errors, and memory that one has lent the other frees.
 */
#include "tests/preload/fake_cudart.h"
#include "tests/preload/program.h"

struct caller {
    int (*malloc)(void **memory, size_t size_bytes);
    int (*free)(void *memory);
    int (*last_error)(void);
    void (*counts)(struct driver_counts *ret_counts);
    int (*runtime)(void);
};

static void load(struct caller *caller, const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        fprintf(stderr, "%s\n", dlerror());
    CHECK(library != NULL);
    *(void **)&caller->malloc = dlsym(library, "caller_malloc");
    *(void **)&caller->free = dlsym(library, "caller_free");
    *(void **)&caller->last_error = dlsym(library, "caller_last_error");
    *(void **)&caller->counts = dlsym(library, "caller_counts");
    *(void **)&caller->runtime = dlsym(library, "caller_runtime");
    CHECK(caller->malloc != NULL && caller->counts != NULL && caller->runtime != NULL);
}

int main(int argc, char **argv) {
    struct caller callers[2];
    struct driver_counts counts;
    void *memory[2], *none;

    CHECK(argc == 2 || argc == 3);
    for (int i = 1; i < argc; i++)
        load(&callers[i - 1], argv[i]);
    for (int i = 0; i < argc - 1; i++) {
        CHECK(callers[i].malloc(&memory[i], MIB) == 0 && is_lent(memory[i]));
        callers[i].counts(&counts);
        CHECK(counts.allocations == 0);
        printf("%d\n", callers[i].runtime());
        for (int j = 0; j < argc - 1; j++)
            CHECK(callers[j].last_error() == 0);
        CHECK(callers[i].malloc(&none, (size_t)1 << 40) == CUDA_MEMORY_ALLOCATION);
        for (int j = argc - 2; j >= 0; j--)
            CHECK(callers[j].last_error() == (i == j ? CUDA_MEMORY_ALLOCATION : 0));
    }
    for (int i = 0; i < argc - 1; i++) {
        CHECK(callers[argc - 2 - i].free(memory[i]) == 0); /* by the other one's function */
        callers[argc - 2 - i].counts(&counts);
        CHECK(counts.waits == (unsigned)i + 1 && counts.frees == 0);
        CHECK(!is_lent(memory[i]));
    }
    return 0;
}
