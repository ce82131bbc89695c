/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/host_pages.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/units.h"
#include "daemon/loop/worker.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* The piece that a thread takes at a time: about 2 to 15 ms of work, which is how often progress is seen. */
#define PIECE_BYTES (32 * MIB)
/* Pages made by one call, under the lock of the address space: small pages took 1.3 ms a MiB in each of 8
 * threads, huge ones 0.16 ms (H200 machine, 16 cores). */
#define STEP_BYTES (256 * KIB)
/* Pages locked or unmapped by one call: up to 100 ms a GiB where they are small. */
#define WALK_BYTES (8 * MIB)
/* More threads were not tried: 8 made 4 GiB in 81 ms with huge pages and 646 ms without (same machine). */
#define THREADS_MAX 8
/* How much nicer the threads that make pages are than the daemon: the loop then has three quarters of a core
 * that it shares with one of them, and comes first when it wakes, while growth still gets on where every core
 * is busy with the users' work. (With 10 it took ten times as long there.) */
#define NICER_BY 5
/* Each piece that the kernel finds no huge pages for costs it a search, and moving others' pages about. */
#define HUGE_FAILURES_MAX 8u
/* A page that is on its way from one of the kernel's lists to another cannot be moved just then. */
#define HUGE_ATTEMPTS 3u

struct making {
    char *memory;
    uint64_t size_bytes;
    _Atomic uint64_t next; /* offset of the next piece */
    _Atomic int error;
    _Atomic bool huge; /* still asking for huge pages */
    _Atomic unsigned huge_failures;
    _Atomic uint64_t huge_bytes;
    struct worker *worker;
};

/* Makes the pages of a range exist. A full tmpfs is an error here, not a SIGBUS. A full cgroup is a kill: the
 * caller has looked. */
static int populate(char *memory, uint64_t size_bytes) {
    if (madvise(memory, size_bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    if (errno != EINVAL)
        return -errno;
    long page = sysconf(_SC_PAGESIZE); /* before Linux 5.14 */
    for (uint64_t offset = 0; offset < size_bytes; offset += (uint64_t)page)
        ((volatile char *)memory)[offset] = 0;
    return 0;
}

/* Asks the kernel to put huge pages under a piece. MADV_COLLAPSE works on shared memory whatever
 * transparent_hugepage/shmem_enabled says, unless that is "deny"
 * (Documentation/admin-guide/mm/transhuge.rst), but not where there is no page at all yet (collapse_file()
 * takes that for a file that was cut short): so one small page is made first for each huge one. That is five
 * times faster than making all the small ones, and spares the copying. No harm where it fails: small pages
 * step in. */
static int make_huge(struct making *making, char *memory, uint64_t size_bytes) {
    for (uint64_t offset = 0; offset < size_bytes; offset += HOST_PAGES_HUGE_BYTES) {
        int r = populate(memory + offset, (uint64_t)sysconf(_SC_PAGESIZE));
        if (r < 0)
            return r;
    }
    for (unsigned attempt = 0; attempt < HUGE_ATTEMPTS; attempt++) {
        if (madvise(memory, size_bytes, MADV_COLLAPSE) == 0) {
            atomic_fetch_add(&making->huge_bytes, size_bytes);
            return 0;
        }
        if (errno == EINVAL) { /* the kernel does not do it, or is told not to */
            making->huge = false;
            return 0;
        }
        if (errno != EAGAIN)
            break;
    }
    if (atomic_fetch_add(&making->huge_failures, 1) + 1 >= HUGE_FAILURES_MAX)
        making->huge = false;
    return 0;
}

static int make_piece(struct making *making, char *memory, uint64_t size_bytes) {
    if (making->huge) {
        int r = make_huge(making, memory, size_bytes);
        if (r < 0)
            return r;
    }
    for (uint64_t offset = 0; offset < size_bytes; offset += STEP_BYTES) {
        int r = populate(memory + offset, STEP_BYTES);
        if (r < 0)
            return r;
    }
    return 0;
}

static void make_pieces(struct making *making) {
    for (;;) {
        uint64_t offset = atomic_fetch_add(&making->next, PIECE_BYTES);
        if (offset >= making->size_bytes || making->error != 0)
            return;
        uint64_t rest = making->size_bytes - offset;
        int r = make_piece(making, making->memory + offset, rest < PIECE_BYTES ? rest : PIECE_BYTES);
        if (r < 0)
            making->error = r;
        if (making->worker != NULL)
            worker_beat(making->worker);
    }
}

static void *make_main(void *argument) {
    id_t self = (id_t)gettid();
    setpriority(PRIO_PROCESS, self,
                getpriority(PRIO_PROCESS, self) + NICER_BY); /* in Linux, a thread's own */
    make_pieces(argument);
    return NULL;
}

int host_pages_make(void *memory, uint64_t size_bytes, bool huge, struct worker *worker,
                    uint64_t *ret_huge_bytes) {
    struct making making = {.memory = memory, .size_bytes = size_bytes, .huge = huge, .worker = worker};
    pthread_t threads[THREADS_MAX];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t pieces = (size_bytes + PIECE_BYTES - 1) / PIECE_BYTES;
    unsigned wanted = cores < 1 ? 1 : cores < THREADS_MAX ? (unsigned)cores : THREADS_MAX, started = 0;

    if (pieces < wanted)
        wanted = (unsigned)pieces;
    while (started < wanted && pthread_create(&threads[started], NULL, make_main, &making) == 0)
        started++;
    /* The worker's own thread only waits: a thread that became nicer cannot go back without privileges. */
    if (started == 0)
        make_pieces(&making);
    for (unsigned i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (making.error != 0)
        return making.error;
    *ret_huge_bytes = making.huge_bytes;
    return 0;
}

int host_pages_lock(void *memory, uint64_t size_bytes) {
    for (uint64_t offset = 0; offset < size_bytes; offset += WALK_BYTES) {
        uint64_t rest = size_bytes - offset;
        if (mlock((char *)memory + offset, rest < WALK_BYTES ? rest : WALK_BYTES) < 0)
            return -errno;
    }
    return 0;
}

void host_pages_unmap(void *memory, uint64_t size_bytes) {
    for (uint64_t offset = 0; offset < size_bytes; offset += WALK_BYTES) {
        uint64_t rest = size_bytes - offset;
        munmap((char *)memory + offset, rest < WALK_BYTES ? rest : WALK_BYTES);
    }
}
