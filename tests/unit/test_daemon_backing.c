/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory as the daemon makes it: sealed, of its size, zero, with its pages there; and whatever system
 * call fails on the way, descriptors and mappings are afterwards what they were before.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/units.h"
#include "daemon/supply/backing.h"
#include "daemon/supply/host_pages.h"
#include "daemon/supply/numa.h"
#include "unit.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static unsigned fault_countdown; /* 0: not armed */
static unsigned faults;
static int fault_errno;
static const char *fault_call; /* the last that failed */

/* The error that a request for huge pages gets in place of the kernel's answer; 0: the kernel answers. */
static int collapse_errno;
static _Atomic unsigned collapse_calls;

/* The most that one call went through while it held the lock of the address space. */
static _Atomic uint64_t walked_most;

static void note_walk(uint64_t size) {
    uint64_t most = walked_most;
    while (size > most && !atomic_compare_exchange_weak(&walked_most, &most, size))
        ;
}

static bool fault_now(const char *call) {
    if (fault_countdown == 0 || --fault_countdown > 0)
        return false;
    faults++;
    fault_call = call;
    errno = fault_errno;
    return true;
}

void *__real_calloc(size_t count, size_t size);
int __real_memfd_create(const char *name, unsigned flags);
int __real_ftruncate(int fd, off_t size);
int __real_fcntl(int fd, int command, ...);
void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int __real_madvise(void *address, size_t size, int advice);
int __real_mlock(const void *address, size_t size);
void *__wrap_calloc(size_t count, size_t size);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_ftruncate(int fd, off_t size);
int __wrap_fcntl(int fd, int command, ...);
void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);
int __wrap_madvise(void *address, size_t size, int advice);
int __wrap_mlock(const void *address, size_t size);
int __real_munmap(void *address, size_t size);
int __wrap_munmap(void *address, size_t size);

void *__wrap_calloc(size_t count, size_t size) {
    return fault_now("calloc") ? NULL : __real_calloc(count, size);
}

int __wrap_memfd_create(const char *name, unsigned flags) {
    return fault_now("memfd_create") ? -1 : __real_memfd_create(name, flags);
}

int __wrap_ftruncate(int fd, off_t size) {
    return fault_now("ftruncate") ? -1 : __real_ftruncate(fd, size);
}

int __wrap_fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    return fault_now("fcntl") ? -1 : __real_fcntl(fd, command, argument);
}

void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return fault_now("mmap") ? MAP_FAILED : __real_mmap(address, size, protection, flags, fd, offset);
}

int __wrap_madvise(void *address, size_t size, int advice) {
    if (advice == MADV_POPULATE_WRITE)
        note_walk(size);
    if (advice == MADV_COLLAPSE && collapse_errno != 0) {
        atomic_fetch_add(&collapse_calls, 1);
        errno = collapse_errno;
        return -1;
    }
    return fault_now("madvise") ? -1 : __real_madvise(address, size, advice);
}

int __wrap_mlock(const void *address, size_t size) {
    note_walk(size);
    return fault_now("mlock") ? -1 : __real_mlock(address, size);
}

int __wrap_munmap(void *address, size_t size) {
    note_walk(size);
    return __real_munmap(address, size);
}

static int open_fds(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++)
        count += __real_fcntl(fd, F_GETFD, 0L) >= 0;
    return count;
}

/* Mappings of the daemon's memfds in this process. */
static int mappings(void) {
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        count += strstr(line, "memfd:gpupool") != NULL;
    fclose(file);
    return count;
}

static void assert_is_good(const struct backing *backing, uint64_t size) {
    struct stat status;

    assert_int_equal(backing->kind, PROTO_SEGMENT_MEMFD);
    assert_int_equal(backing->size_bytes, size);
    assert_non_null(backing_pages_name(backing->pages));
    assert_int_equal((uintptr_t)backing->mapping % HOST_PAGES_HUGE_BYTES, 0);
    assert_int_equal(fstat(backing->fd, &status), 0);
    assert_int_equal(status.st_size, size);
    assert_int_equal((uint64_t)status.st_blocks * 512, size); /* every page is there */
    assert_true(__real_fcntl(backing->fd, F_GETFD, 0L) & FD_CLOEXEC);
    assert_int_equal(__real_fcntl(backing->fd, F_GET_SEALS, 0L), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    const unsigned char *memory = __real_mmap(NULL, size, PROT_READ, MAP_SHARED, backing->fd, 0);
    assert_ptr_not_equal(memory, MAP_FAILED);
    for (uint64_t i = 0; i < size; i++)
        if (memory[i] != 0)
            fail_msg("byte %llu is not zero", (unsigned long long)i);
    munmap((void *)(uintptr_t)memory, size);
}

static int backing_new_host(uint64_t size_bytes, enum config_huge_pages huge_pages,
                            struct backing **ret_backing, char error[BACKING_ERROR_SIZE]) {
    const struct backing_order order = {
        .kind = PROTO_SEGMENT_MEMFD, .size_bytes = size_bytes, .huge_pages = huge_pages};
    return backing_new(&order, NULL, ret_backing, error);
}

static void host_memory_is_zero_and_its_size_is_for_good(void **state) {
    static const enum config_huge_pages choices[] = {CONFIG_HUGE_PAGES_OFF, CONFIG_HUGE_PAGES_AUTO};
    (void)state;
    for (unsigned i = 0; i < sizeof choices / sizeof *choices; i++) {
        int fds = open_fds(), maps = mappings();
        struct backing *backing = NULL;
        char error[BACKING_ERROR_SIZE] = "";
        assert_int_equal(backing_new_host(4 * MIB, choices[i], &backing, error), 0);
        assert_is_good(backing, 4 * MIB);
        if (choices[i] == CONFIG_HUGE_PAGES_OFF)
            assert_int_equal(backing->pages, BACKING_PAGES_PLAIN);
        assert_int_equal(__real_ftruncate(backing->fd, 2 * MIB), -1);
        assert_int_equal(errno, EPERM);
        assert_int_equal(__real_ftruncate(backing->fd, 8 * MIB), -1);
        assert_int_equal(errno, EPERM);
        assert_int_equal(__real_fcntl(backing->fd, F_ADD_SEALS, (long)F_SEAL_WRITE), -1);
        assert_int_equal(errno, EPERM);
        assert_null(backing_free(backing));
        assert_int_equal(open_fds(), fds);
        assert_int_equal(mappings(), maps);
    }
    assert_null(backing_free(NULL));
}

static void many_pieces_are_touched_by_many_threads(void **state) {
    struct backing *backing = NULL;
    char error[BACKING_ERROR_SIZE] = "";
    uint64_t total, available;
    (void)state;
    if (numa_memory(0, &total, &available) < 0 || available < total / 32 + GIB)
        skip(); /* the machine needs its memory for others */
    assert_int_equal(backing_new_host(260 * MIB, CONFIG_HUGE_PAGES_AUTO, &backing, error), 0);
    struct stat status;
    assert_int_equal(fstat(backing->fd, &status), 0);
    assert_int_equal((uint64_t)status.st_blocks * 512, 260 * MIB);
    backing_free(backing);
}

/* How much of the mapping that starts at memory the kernel maps by entries of 2 MiB. */
static uint64_t huge_mapped_bytes(const void *memory) {
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512], start[32];
    unsigned long long kib = 0;
    bool found = false;

    assert_non_null(file);
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)memory);
    while (fgets(line, sizeof line, file) != NULL) {
        if (!found)
            found = strncmp(line, start, strlen(start)) == 0;
        else if (sscanf(line, "ShmemPmdMapped: %llu", &kib) == 1)
            break;
    }
    fclose(file);
    assert_true(found);
    return kib * KIB;
}

/* Whether this kernel puts huge pages under shared memory when asked, found out without the daemon's code. */
static bool kernel_collapses(void) {
    void *memory = MAP_FAILED;
    int fd = __real_memfd_create("probe", MFD_CLOEXEC);
    bool collapses = false;

    assert_true(fd >= 0);
    assert_int_equal(__real_ftruncate(fd, 4 * MIB), 0);
    char *reserved = __real_mmap(NULL, 6 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(reserved, MAP_FAILED);
    char *aligned = (char *)(((uintptr_t)reserved + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
    memory = __real_mmap(aligned, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    assert_ptr_equal(memory, aligned);
    memset(memory, 0, 4 * MIB);
    collapses = __real_madvise(memory, 4 * MIB, MADV_COLLAPSE) == 0;
    munmap(reserved, 6 * MIB);
    close(fd);
    return collapses;
}

static void huge_pages_are_put_together_where_nobody_reserved_any(void **state) {
    struct backing *backing = NULL;
    char error[BACKING_ERROR_SIZE] = "";
    (void)state;
    if (!kernel_collapses() || numa_free_huge_pages(0) > 0)
        skip();
    assert_int_equal(backing_new_host(70 * MIB, CONFIG_HUGE_PAGES_AUTO, &backing, error), 0);
    assert_is_good(backing, 70 * MIB);
    assert_int_equal(backing->pages, BACKING_PAGES_TRANSPARENT);
    assert_int_equal(huge_mapped_bytes(backing->mapping), 70 * MIB);
    backing_free(backing);
}

static void small_pages_step_in_for_huge_ones(void **state) {
    static const int errnos[] = {EINVAL, ENOMEM, EBUSY, EAGAIN};
    static const unsigned asked_at_most[] = {1, 1, 1, 3}; /* times for a piece */
    (void)state;
    if (numa_free_huge_pages(0) > 0)
        skip();
    for (unsigned i = 0; i < sizeof errnos / sizeof *errnos; i++) {
        struct backing *backing = NULL;
        char error[BACKING_ERROR_SIZE] = "";
        collapse_errno = errnos[i];
        collapse_calls = 0;
        int r = backing_new_host(20 * MIB, CONFIG_HUGE_PAGES_AUTO, &backing, error);
        collapse_errno = 0;
        assert_int_equal(r, 0);
        assert_is_good(backing, 20 * MIB);
        /* where the kernel gives them at the first touch, this is transparent all the same */
        if (huge_mapped_bytes(backing->mapping) == 0)
            assert_int_equal(backing->pages, BACKING_PAGES_PLAIN);
        assert_int_equal(collapse_calls, asked_at_most[i]);
        backing_free(backing);
    }
}

static void a_kernel_without_huge_pages_is_not_asked_for_ever(void **state) {
    struct backing *backing = NULL;
    char error[BACKING_ERROR_SIZE] = "";
    uint64_t total, available;
    (void)state;
    if (numa_memory(0, &total, &available) < 0 || available < total / 32 + 2 * GIB ||
        numa_free_huge_pages(0) > 0)
        skip(); /* the machine needs its memory for others */
    collapse_errno = ENOMEM;
    collapse_calls = 0;
    int r = backing_new_host(GIB, CONFIG_HUGE_PAGES_AUTO, &backing, error);
    collapse_errno = 0;
    assert_int_equal(r, 0);
    assert_in_range(collapse_calls, 8, 8 + 7); /* 32 pieces; 8 threads may be at it when the count is full */
    backing_free(backing);
}

/* The loop shares the address space, and the processors, with the threads that make a segment's pages. */
static void the_loop_is_not_held_up(void **state) {
    static const enum config_huge_pages choices[] = {CONFIG_HUGE_PAGES_OFF, CONFIG_HUGE_PAGES_AUTO};
    int before = getpriority(PRIO_PROCESS, 0);
    (void)state;
    for (unsigned i = 0; i < sizeof choices / sizeof *choices; i++) {
        struct backing *backing = NULL;
        char error[BACKING_ERROR_SIZE] = "";
        walked_most = 0;
        assert_int_equal(backing_new_host(70 * MIB, choices[i], &backing, error), 0);
        backing_free(backing);
        assert_in_range(walked_most, 4 * KIB, 8 * MIB);
        assert_int_equal(getpriority(PRIO_PROCESS, 0),
                         before); /* of the thread that frees and asks drivers */
    }
}

static void more_than_the_machine_has_is_refused_and_nobody_is_killed(void **state) {
    struct backing *backing = NULL;
    char error[BACKING_ERROR_SIZE] = "";
    int fds = open_fds(), maps = mappings();
    (void)state;
    assert_true(backing_new_host(512 * TIB, CONFIG_HUGE_PAGES_AUTO, &backing, error) < 0);
    assert_null(backing);
    assert_non_null(strstr(error, "512 TiB"));
    assert_true(backing_new_host(512 * TIB, CONFIG_HUGE_PAGES_REQUIRE, &backing, error) < 0);
    assert_non_null(strstr(error, "vm.nr_hugepages")); /* the remedy */
    assert_int_equal(open_fds(), fds);
    assert_int_equal(mappings(), maps);
}

static void whatever_fails_nothing_is_left(void **state) {
    static const int errnos[] = {ENOMEM, EINVAL, EMFILE};
    const bool has_huge_pages = numa_free_huge_pages(0) > 0;
    (void)state;

    for (unsigned i = 0; i < sizeof errnos / sizeof *errnos; i++) {
        unsigned n = 1, failures = 0;
        fault_errno = errnos[i];
        for (;; n++) { /* the last round: nothing failed */
            int fds = open_fds(), maps = mappings();
            struct backing *backing = NULL;
            char error[BACKING_ERROR_SIZE] = "";
            faults = 0;
            fault_countdown = n;
            int r = backing_new_host(2 * MIB, CONFIG_HUGE_PAGES_AUTO, &backing, error);
            fault_countdown = 0;
            assert_int_equal(r == 0, backing != NULL);
            if (r == 0) {
                assert_is_good(backing, 2 * MIB);
                /* Advice and the lock of pages may fail without harm. */
                if (faults > 0 && !has_huge_pages)
                    assert_true(strcmp(fault_call, "madvise") == 0 || strcmp(fault_call, "mlock") == 0);
                if (faults > 0 && strcmp(fault_call, "mlock") == 0)
                    assert_false(backing->locked);
            } else {
                failures++;
                assert_true(r < 0);
                assert_int_equal(faults, 1);
                assert_true(strlen(error) > 0);
            }
            backing_free(backing);
            assert_int_equal(open_fds(), fds);
            assert_int_equal(mappings(), maps);
            if (faults == 0)
                break;
        }
        assert_true(n > 7); /* calloc, memfd_create, ftruncate, mmap twice, fcntl, madvise, mlock */
        /* calloc, memfd_create, ftruncate, mmap, fcntl; with huge pages plain ones step in for the middle
         * ones */
        assert_true(failures >= (has_huge_pages ? 1 : 5));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_memory_is_zero_and_its_size_is_for_good),
        cmocka_unit_test(many_pieces_are_touched_by_many_threads),
        cmocka_unit_test(huge_pages_are_put_together_where_nobody_reserved_any),
        cmocka_unit_test(small_pages_step_in_for_huge_ones),
        cmocka_unit_test(a_kernel_without_huge_pages_is_not_asked_for_ever),
        cmocka_unit_test(the_loop_is_not_held_up),
        cmocka_unit_test(more_than_the_machine_has_is_refused_and_nobody_is_killed),
        cmocka_unit_test(whatever_fails_nothing_is_left),
    };
    return cmocka_run_group_tests_name("host memory", tests, NULL, NULL);
}
