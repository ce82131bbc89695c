/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost of making host memory of another process ready for copies, by kind of page and by way of asking
 * the driver; and whether copies may cross the border of two registrations. By the results,
 * daemon/supply/backing.c makes pages and client/session/segment.c registers them.
 *
 *     host_registration [--json FILE] [cuda|sim] [MIB…]        default: cuda 1024 4096
 *
 * As root it turns transparent huge pages for shared memory on and reserves 2 MiB pages while it measures
 * those kinds, and puts both back. Ends after 40 s at the latest, with fewer rounds. Exits 1 when a copy came
 * out wrong.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef HOST_REGISTRATION_CUDA
#include <cuda_runtime_api.h>
#endif

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "gpu/gpu.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define THREADS   8u
#define ROUNDS    3u
#define BUDGET_NS (34 * NS_PER_S) /* no further round after this */
#define HUGE_PAGE (2 * MIB)

#define SHMEM_SWITCH "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define HUGE_SWITCH  "/proc/sys/vm/nr_hugepages"

enum kind {
    PLAIN,
    COLLAPSED,
    SHMEM,
    HUGETLB,
    KINDS
};
static const char *const kind_names[KINDS] = {"plain", "collapsed", "shmem_thp", "hugetlb"};

/* Ways to register. unaligned: the mapping starts 4 KiB behind a border of 2 MiB, as a plain mmap may. */
static const struct way {
    const char *name;
    unsigned pieces;
    bool prefault, unaligned;
} ways[] = {
    {"one_call", 1, false, false},         {"one_call_unaligned", 1, false, true},
    {"prefault_one_call", 1, true, false}, {"parallel_2", 2, false, false},
    {"parallel_8", THREADS, false, false}, {"prefault_parallel_8", THREADS, true, false},
};
#define WAYS (sizeof ways / sizeof *ways)

static const struct gpu *gpu;
static void *stream;
static FILE *json;
static bool json_began;
static bool wrong;
static uint64_t started_ns;

static void die(const char *what, int error) {
    printf("FAILED: %s: %s\n", what, error != 0 ? gpu->error_name(error) : strerrordesc_np(errno));
    exit(1);
}

/* --- pages --- */

struct share { /* of a piece of work that threads do together */
    char *memory;
    uint64_t size_bytes;
    _Atomic uint64_t next;
    _Atomic int error;
    bool collapse;
};

static void *populate_main(void *argument) {
    struct share *share = argument;
    const uint64_t piece = 32 * MIB;
    for (;;) {
        uint64_t offset = atomic_fetch_add(&share->next, piece);
        if (offset >= share->size_bytes)
            return NULL;
        uint64_t size = share->size_bytes - offset < piece ? share->size_bytes - offset : piece;
        char *memory = share->memory + offset;
        if (share->collapse) {
            /* the kernel collapses nothing where no page is at all */
            for (uint64_t i = 0; i < size; i += HUGE_PAGE)
                ((volatile char *)memory)[i] = 0;
            if (madvise(memory, size, MADV_COLLAPSE) < 0)
                share->error = errno;
        }
        if (madvise(memory, size, MADV_POPULATE_WRITE) < 0)
            share->error = errno;
    }
}

static void run_threads(unsigned count, void *(*run)(void *), void *argument, size_t argument_stride) {
    pthread_t threads[THREADS];
    for (unsigned i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, run, (char *)argument + i * argument_stride) != 0)
            die("pthread_create", 0);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static int populate(char *memory, uint64_t size_bytes, bool collapse) {
    struct share share = {.memory = memory, .size_bytes = size_bytes, .collapse = collapse};
    run_threads(THREADS, populate_main, &share, 0);
    return share.error;
}

struct mapping {
    char *reserved, *memory;
    uint64_t size_bytes;
};

static struct mapping map(int fd, uint64_t size_bytes, bool unaligned) {
    struct mapping mapping = {.size_bytes = size_bytes};
    mapping.reserved =
        mmap(NULL, size_bytes + 2 * HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping.reserved == MAP_FAILED)
        die("mmap", 0);
    uintptr_t start = ((uintptr_t)mapping.reserved + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    mapping.memory = mmap((void *)(start + (unaligned ? 4096 : 0)), size_bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapping.memory == MAP_FAILED)
        die("mmap", 0);
    return mapping;
}

static void unmap(struct mapping *mapping) {
    munmap(mapping->reserved, mapping->size_bytes + 2 * HUGE_PAGE);
}

/* How much of a mapping the kernel maps by 2 MiB entries: 0 where it does not say. */
static uint64_t huge_mapped(const struct mapping *mapping) {
    _cleanup_(fclosep) FILE *file = fopen("/proc/self/smaps", "re");
    char line[512], start[32];
    uint64_t kib = 0;
    bool found = false;

    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)mapping->memory);
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (!found)
            found = strncmp(line, start, strlen(start)) == 0;
        else if (sscanf(line, "ShmemPmdMapped: %" SCNu64, &kib) == 1)
            break;
    }
    return kib * KIB;
}

/* --- the machine's switches --- */

static char shmem_before[64], huge_before[64];

static bool switch_read(const char *path, char *text, size_t size) {
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    return file != NULL && fgets(text, (int)size, file) != NULL;
}

static bool switch_write(const char *path, const char *text) {
    _cleanup_(close_fdp) int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

static void switches_restore(void) {
    if (shmem_before[0] != '\0')
        switch_write(SHMEM_SWITCH, shmem_before);
    if (huge_before[0] != '\0')
        switch_write(HUGE_SWITCH, huge_before);
    shmem_before[0] = huge_before[0] = '\0';
}

/* Makes a kind of page possible. Returns false where this machine, or this user, cannot have it. */
static bool switches_set(enum kind kind, uint64_t size_bytes) {
    char text[128], *chosen;
    if (kind == SHMEM) {
        if (!switch_read(SHMEM_SWITCH, text, sizeof text) || (chosen = strchr(text, '[')) == NULL)
            return false;
        snprintf(shmem_before, sizeof shmem_before, "%.*s", (int)strcspn(chosen + 1, "]"), chosen + 1);
        return switch_write(SHMEM_SWITCH, "advise");
    }
    if (kind == HUGETLB) {
        if (!switch_read(HUGE_SWITCH, huge_before, sizeof huge_before))
            return false;
        snprintf(text, sizeof text, "%" PRIu64,
                 (uint64_t)strtoull(huge_before, NULL, 10) + size_bytes / HUGE_PAGE);
        return switch_write(HUGE_SWITCH, text);
    }
    return true;
}

/* --- results --- */

static void result(uint64_t size_bytes, const char *pages, const char *what, const char *unit, double value) {
    printf("%-8s %-10s %-40s %12.3f %s\n", BYTES_TEXT(size_bytes), pages, what, value, unit);
    if (json != NULL)
        fprintf(json,
                "%s\n    {\"bytes\": %" PRIu64
                ", \"pages\": \"%s\", \"what\": \"%s\", \"unit\": \"%s\", \"value\": %.3f}",
                json_began ? "," : "", size_bytes, pages, what, unit, value);
    json_began = true;
}

static double milliseconds(uint64_t ns) {
    return (double)ns / (double)NS_PER_MS;
}

/* --- registration --- */

struct piece {
    char *memory;
    uint64_t size_bytes;
    int error;
};

static void *register_main(void *argument) {
    struct piece *piece = argument;
    piece->error = gpu->host_register(piece->memory, piece->size_bytes);
    return NULL;
}

static void register_all(const struct mapping *mapping, unsigned count) {
    struct piece pieces[THREADS];
    for (unsigned i = 0; i < count; i++)
        pieces[i] = (struct piece){mapping->memory + i * (mapping->size_bytes / count),
                                   mapping->size_bytes / count, 0};
    if (count == 1)
        register_main(pieces);
    else
        run_threads(count, register_main, pieces, sizeof *pieces);
    for (unsigned i = 0; i < count; i++)
        if (pieces[i].error != 0)
            die("host_register", pieces[i].error);
}

static void unregister_all(const struct mapping *mapping, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        int r = gpu->host_unregister(mapping->memory + i * (mapping->size_bytes / count));
        if (r != 0)
            die("host_unregister", r);
    }
}

/* --- copies --- */

/* One way of a copy: the best of 5, its speed and how long the call itself took. A call that returns only
 * when the copy is done treats its memory as pageable. */
static int copy_one_way(void *to, const void *from, uint64_t size_bytes, uint64_t *ret_ns,
                        uint64_t *ret_call_ns) {
    uint64_t best_ns = UINT64_MAX, call_ns = 0;
    for (unsigned i = 0; i < 5; i++) {
        uint64_t start_ns = clock_now_ns();
        int r = gpu->memory_copy(0, to, from, size_bytes, stream);
        uint64_t enqueued_ns = clock_now_ns();
        if (r == 0)
            r = gpu->stream_synchronize(0, stream);
        if (r != 0)
            return r;
        uint64_t ns = clock_now_ns() - start_ns;
        if (ns < best_ns) {
            best_ns = ns;
            call_ns = enqueued_ns - start_ns;
        }
    }
    *ret_ns = best_ns;
    *ret_call_ns = call_ns;
    return 0;
}

/* Copies a range of the mapping to the device and back into it, and looks at every word. */
static void copies(const struct mapping *mapping, const char *pages, const char *where, uint64_t offset,
                   uint64_t size_bytes, void *on_device) {
    uint64_t *words = (uint64_t *)(void *)(mapping->memory + offset), up_ns, up_call_ns, down_ns,
             down_call_ns;
    uint64_t count = size_bytes / sizeof *words, bad = 0;
    char what[96];

    for (uint64_t i = 0; i < count; i++)
        words[i] = i * UINT64_C(0x9E3779B97F4A7C15);
    int r = copy_one_way(on_device, words, size_bytes, &up_ns, &up_call_ns);
    if (r == 0) {
        memset(words, 0, size_bytes);
        r = copy_one_way(words, on_device, size_bytes, &down_ns, &down_call_ns);
    }
    if (r != 0) {
        snprintf(what, sizeof what, "%s: refused, %s", where, gpu->error_name(r));
        result(mapping->size_bytes, pages, what, "error", r);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        bad += words[i] != i * UINT64_C(0x9E3779B97F4A7C15);
    snprintf(what, sizeof what, "%s: to device", where);
    result(mapping->size_bytes, pages, what, "GB/s", (double)size_bytes / (double)up_ns);
    snprintf(what, sizeof what, "%s: to device, the call", where);
    result(mapping->size_bytes, pages, what, "ms", milliseconds(up_call_ns));
    snprintf(what, sizeof what, "%s: from device", where);
    result(mapping->size_bytes, pages, what, "GB/s", (double)size_bytes / (double)down_ns);
    snprintf(what, sizeof what, "%s: from device, the call", where);
    result(mapping->size_bytes, pages, what, "ms", milliseconds(down_call_ns));
    if (bad > 0) {
        printf("FAILED: %s: %" PRIu64 " words are wrong\n", where, bad);
        wrong = true;
    }
}

/* Half of the size at a border of two registrations, and as much inside one. */
static void copies_across(int fd, uint64_t size_bytes, const char *pages) {
    uint64_t copied = size_bytes / 8 < 512 * MIB ? size_bytes / 8 : 512 * MIB;
    void *on_device;
    int r = gpu->memory_allocate(0, copied, &on_device);
    if (r != 0)
        die("memory_allocate", r);

    struct mapping mapping = map(fd, size_bytes, false);
    register_all(&mapping, 1);
    copies(&mapping, pages, "copy in one registration", size_bytes / 8 - copied / 2, copied, on_device);
    unregister_all(&mapping, 1);
    unmap(&mapping);
    mapping = map(fd, size_bytes, false);
    register_all(&mapping, THREADS);
    copies(&mapping, pages, "copy inside a piece", size_bytes / 8, copied, on_device);
    copies(&mapping, pages, "copy across a border", size_bytes / 8 - copied / 2, copied, on_device);
    unregister_all(&mapping, THREADS);
    unmap(&mapping);
    gpu->memory_free(0, on_device);
}

static uint64_t median(uint64_t *values, unsigned count) {
    for (unsigned i = 1; i < count; i++)
        for (unsigned j = i; j > 0 && values[j] < values[j - 1]; j--) {
            uint64_t value = values[j];
            values[j] = values[j - 1];
            values[j - 1] = value;
        }
    return values[count / 2];
}

static void measure(uint64_t size_bytes, enum kind kind) {
    const char *pages = kind_names[kind];
    uint64_t took_ns[WAYS][ROUNDS], undo_ns[WAYS][ROUNDS];
    char what[96];
    unsigned rounds = 0;

    _cleanup_(close_fdp) int fd =
        switches_set(kind, size_bytes)
            ? memfd_create("host_registration",
                           MFD_CLOEXEC | (kind == HUGETLB ? MFD_HUGETLB | MFD_HUGE_2MB : 0))
            : -1;
    if (fd < 0 || ftruncate(fd, (off_t)size_bytes) < 0) {
        printf("%-8s %-10s not to be had on this machine\n", BYTES_TEXT(size_bytes), pages);
        switches_restore();
        return;
    }
    struct mapping made = map(fd, size_bytes, false);
    uint64_t start_ns = clock_now_ns();
    if (kind == SHMEM)
        madvise(made.memory, size_bytes, MADV_HUGEPAGE);
    int error = populate(made.memory, size_bytes, kind == COLLAPSED);
    uint64_t made_ns = clock_now_ns() - start_ns;
    if (error != 0) {
        printf("%-8s %-10s not to be had: %s\n", BYTES_TEXT(size_bytes), pages, strerrordesc_np(error));
    } else {
        result(size_bytes, pages, "made by 8 threads", "ms", milliseconds(made_ns));
        if (kind != HUGETLB)
            result(size_bytes, pages, "of it in 2 MiB pages", "MiB", (double)huge_mapped(&made) / (double)MIB);
        for (; rounds < ROUNDS && (rounds == 0 || clock_now_ns() - started_ns < BUDGET_NS); rounds++)
            for (unsigned i = 0; i < WAYS; i++) {
                if (kind == HUGETLB && ways[i].unaligned)
                    continue;
                start_ns = clock_now_ns();
                struct mapping mapping = map(fd, size_bytes, ways[i].unaligned);
                if (kind == SHMEM)
                    madvise(mapping.memory, size_bytes, MADV_HUGEPAGE);
                if (ways[i].prefault && (error = populate(mapping.memory, size_bytes, false)) != 0)
                    die(strerrordesc_np(error), 0);
                register_all(&mapping, ways[i].pieces);
                took_ns[i][rounds] = clock_now_ns() - start_ns;
                start_ns = clock_now_ns();
                unregister_all(&mapping, ways[i].pieces);
                unmap(&mapping);
                undo_ns[i][rounds] = clock_now_ns() - start_ns;
            }
        for (unsigned i = 0; i < WAYS; i++) {
            if (kind == HUGETLB && ways[i].unaligned)
                continue;
            snprintf(what, sizeof what, "map and register: %s", ways[i].name);
            result(size_bytes, pages, what, "ms", milliseconds(median(took_ns[i], rounds)));
            snprintf(what, sizeof what, "unregister and unmap: %s", ways[i].name);
            result(size_bytes, pages, what, "ms", milliseconds(median(undo_ns[i], rounds)));
        }
        if (kind == PLAIN || kind == COLLAPSED)
            copies_across(fd, size_bytes, pages);
    }
    start_ns = clock_now_ns();
    unmap(&made);
    fd = close_fd(fd);
    result(size_bytes, pages, "given back to the kernel", "ms", milliseconds(clock_now_ns() - start_ns));
    switches_restore();
}

static void measure_runtime(uint64_t size_bytes) {
#ifdef HOST_REGISTRATION_CUDA
    uint64_t took_ns[2];
    for (unsigned i = 0; i < 2; i++) {
        void *memory;
        uint64_t start_ns = clock_now_ns();
        int r = (int)cudaMallocHost(&memory, size_bytes);
        took_ns[i] = clock_now_ns() - start_ns;
        if (r != 0)
            die("cudaMallocHost", r);
        cudaFreeHost(memory);
    }
    result(size_bytes, "runtime", "cudaMallocHost", "ms", milliseconds(took_ns[0]));
    result(size_bytes, "runtime", "cudaMallocHost again", "ms", milliseconds(took_ns[1]));
#else
    (void)size_bytes;
#endif
}

int main(int argc, char **argv) {
    uint64_t sizes[8] = {1 * GIB, 4 * GIB};
    unsigned count = 0;
    bool sim = false;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            json = fopen(argv[++i], "we");
        else if (strcmp(argv[i], "sim") == 0 || strcmp(argv[i], "cuda") == 0)
            sim = argv[i][0] == 's';
        else if (count < 8 && strtoull(argv[i], NULL, 10) >= 16)
            sizes[count++] = strtoull(argv[i], NULL, 10) / 16 * 16 * MIB; /* 8 pieces of whole huge pages */
        else
            return 2;
    }
    if (count == 0)
        count = 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    started_ns = clock_now_ns();
    int r = sim ? gpu_sim(NULL, &gpu) : gpu_cuda(&gpu);
    if (r != 0) {
        printf("no GPU (error %d)\n", r);
        return 77;
    }
    r = gpu->stream_create(0, &stream); /* and the context */
    if (r != 0)
        die("stream_create", r);
    atexit(switches_restore);
    if (json != NULL)
        fprintf(json, "{\"gpu\": \"%s\", \"threads\": %u, \"results\": [", gpu->name, THREADS);
    for (unsigned i = 0; i < count; i++) {
        if (!sim)
            measure_runtime(sizes[i]);
        for (unsigned kind = 0; kind < KINDS; kind++)
            measure(sizes[i], (enum kind)kind);
    }
    if (json != NULL) {
        fprintf(json, "\n]}\n");
        fclose(json);
    }
    gpu->stream_destroy(0, stream);
    printf("%s\n", wrong ? "FAILED" : "all ok");
    return wrong;
}
