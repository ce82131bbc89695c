/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that this process alone has, and its forked children: an access there ends the child by SIGSEGV,
 * whatever the child and the handlers of other libraries map. And core files.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/own_mapping.h"
#include "base/units.h"
#include "tests/vm_flags.h"
#include "unit.h"

#define ALIGN_BYTES (2 * MIB)
#define SIZE_BYTES  (4 * MIB)
#define MAPPINGS    8u
#define PAGE_BYTES  4096u

static int memory_file(uint64_t size_bytes) {
    int fd = memfd_create("test-own", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size_bytes), 0);
    return fd;
}

static struct own_mapping *make(uint64_t size_bytes) {
    struct own_mapping *mapping = NULL;
    int fd = memory_file(size_bytes);
    assert_int_equal(own_mapping_make(fd, size_bytes, ALIGN_BYTES, &mapping), 0);
    close(fd);
    memset(mapping->memory, 7, size_bytes);
    return mapping;
}

/* --- another library: its handler maps memory in each child, before the handler of this project --- */

static void *wanted_by_other; /* which the kernel gives it if nothing is mapped there */
static uint64_t other_bytes;
static char *of_other;

static void other_library_in_child(void) {
    if (other_bytes > 0)
        of_other =
            mmap(wanted_by_other, other_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* --- what a child does --- */

/* Runs a function in a forked child, whose return ends it. Returns the child's status. */
static int in_child(int (*main)(void *), void *argument) {
    int status;

    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would report it */
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        alarm(60);
        _exit(main(argument));
    }
    TEST_REAP(pid, &status);
    return status;
}

#define ASSERT_SEGV(status)                                                                                  \
    do {                                                                                                     \
        int status_ = (status);                                                                              \
        if (!WIFSIGNALED(status_) || WTERMSIG(status_) != SIGSEGV)                                           \
            fail_msg("the child ended with the status 0x%x, not by SIGSEGV", (unsigned)status_);             \
    } while (0)

/* Maps memory of the sizes that fit the holes of a child. */
static int map_much(void) {
    for (uint64_t size = 8 * SIZE_BYTES; size >= PAGE_BYTES; size /= 2)
        for (unsigned i = 0; i < 4; i++) {
            char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED)
                return 2;
            memory[0] = memory[size - 1] = 1;
            struct own_mapping *mapping; /* as a client of its own does */
            int fd = memfd_create("test-child", MFD_CLOEXEC);
            if (ftruncate(fd, (off_t)size) < 0 || own_mapping_make(fd, size, ALIGN_BYTES, &mapping) < 0)
                return 2;
            *(char *)mapping->memory = 1;
            close(fd);
        }
    return 0;
}

static int map_and_read(void *address) {
    int r = map_much();
    return r != 0 ? r : *(volatile char *)address == 7 ? 10 : 11;
}

static int map_and_write(void *address) {
    int r = map_much();
    if (r == 0)
        *(volatile char *)address = 9;
    return r != 0 ? r : 10;
}

static int read_at_once(void *address) {
    return *(volatile char *)address == 7 ? 10 : 11;
}

/* A child's child dies the same way, and the child passes that on. */
static int in_grandchild(void *address) {
    pid_t pid = fork();
    if (pid == 0)
        _exit(map_and_read(address));
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return 2;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        return 3;
    return map_and_read(address);
}

/* A child with memory of its own, whose child has neither that nor the parent's. */
static int child_with_own(void *address) {
    struct own_mapping *mapping;
    int fd = memfd_create("test-child", MFD_CLOEXEC);
    if (ftruncate(fd, SIZE_BYTES) < 0 || own_mapping_make(fd, SIZE_BYTES, ALIGN_BYTES, &mapping) < 0)
        return 2;
    void *addresses[] = {address, mapping->memory};
    for (unsigned i = 0; i < 2; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(map_and_read(addresses[i]));
        int status = 0;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
            return 3;
    }
    *(char *)mapping->memory = 1; /* its own stays */
    return own_mapping_is_parents(address) && !own_mapping_is_parents(mapping->memory) ? 0 : 4;
}

/* --- tests --- */

static void an_access_in_a_child_ends_it_whatever_it_has_mapped(void **state) {
    struct own_mapping *mappings[MAPPINGS];

    (void)state;
    for (unsigned i = 0; i < MAPPINGS; i++)
        mappings[i] = make(SIZE_BYTES);
    for (unsigned i = 0; i < MAPPINGS; i += MAPPINGS - 1) {
        char *memory = mappings[i]->memory;
        ASSERT_SEGV(in_child(read_at_once, memory));
        ASSERT_SEGV(in_child(map_and_read, memory));
        ASSERT_SEGV(in_child(map_and_read, memory + SIZE_BYTES - 1));
        ASSERT_SEGV(in_child(map_and_write, memory + SIZE_BYTES / 2));
        ASSERT_SEGV(in_child(in_grandchild, memory));
        assert_int_equal(in_child(child_with_own, memory), 0);
        assert_false(own_mapping_is_parents(memory));
    }
    for (unsigned i = 0; i < MAPPINGS; i++) {
        for (unsigned at = 0; at < SIZE_BYTES; at += PAGE_BYTES)
            assert_int_equal(((char *)mappings[i]->memory)[at], 7);
        assert_true(own_mapping_unmap(mappings[i]));
    }
}

static void a_handler_of_another_library_does_not_fill_the_hole(void **state) {
    struct own_mapping *mapping = make(SIZE_BYTES);

    (void)state;
    wanted_by_other = mapping->memory;
    for (other_bytes = SIZE_BYTES; other_bytes >= PAGE_BYTES; other_bytes /= 2)
        ASSERT_SEGV(in_child(map_and_read, mapping->memory));
    other_bytes = 0;
    assert_true(own_mapping_unmap(mapping));
}

/* A sanitizer maps memory of its own in a child, before any handler, and may have taken the place. */
#define NOT_TRIED 40

static int others_memory_is_kept(void *argument) {
    char *memory = argument;
    if (of_other != wanted_by_other)
        return NOT_TRIED;
    of_other[0] = of_other[other_bytes - 1] = 1;
    for (uint64_t at = 0; at < SIZE_BYTES; at += PAGE_BYTES) {
        /* Something is mapped at each page: nothing new goes there. */
        void *made = mmap(memory + at, PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == memory + at)
            return 5;
        munmap(made, PAGE_BYTES);
    }
    return map_and_read(memory + PAGE_BYTES); /* not the other library's: it stays inaccessible */
}

/* As a driver's mapping, which cannot be inherited: a page of it is missing here, and the advice fails. */
static void a_hole_that_was_not_inherited_is_filled_around_what_is_there(void **state) {
    struct own_mapping *mapping = make(SIZE_BYTES);
    char *memory = mapping->memory;

    (void)state;
    assert_int_equal(munmap(memory + SIZE_BYTES - PAGE_BYTES, PAGE_BYTES), 0);
    wanted_by_other = memory + MIB;
    other_bytes = 3ul * PAGE_BYTES;
    int status = in_child(others_memory_is_kept, memory);
    other_bytes = 0;
    own_mapping_forget(mapping);
    munmap(memory, SIZE_BYTES);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_TRIED)
        skip();
    ASSERT_SEGV(status);
}

static int is_not_parents(void *address) {
    return own_mapping_is_parents(address);
}

static void addresses_that_were_given_back_are_a_childs_to_use(void **state) {
    struct own_mapping *mapping = make(SIZE_BYTES);
    void *address = mapping->memory;

    (void)state;
    assert_true(own_mapping_unmap(mapping));
    assert_int_equal(in_child(is_not_parents, address), 0);
    assert_true(own_mapping_unmap(NULL));
    own_mapping_forget(NULL);
}

/* --- flags, as the kernel tells them --- */

static int no_op(void *argument) {
    (void)argument;
    return 0;
}

static void a_child_without_handlers_inherits_nothing_before_and_after_a_fork(void **state) {
    struct own_mapping *mapping = make(SIZE_BYTES);

    (void)state;
    assert_true(vm_has_flag(mapping->memory, "dc"));
    assert_int_equal(in_child(no_op, NULL), 0);
    assert_true(vm_has_flag(mapping->memory, "dc"));
    assert_true(own_mapping_unmap(mapping));
}

static void core_files_have_the_memory_where_it_was_wanted_alone(void **state) {
    (void)state;
    for (unsigned dumped = 0; dumped < 2; dumped++) {
        own_mapping_set_dumped(dumped == 1);
        struct own_mapping *mapping = make(SIZE_BYTES);
        assert_int_equal(vm_has_flag(mapping->memory, "dd"), dumped == 0);
        assert_true(own_mapping_unmap(mapping));
        void *memory = mmap(NULL, SIZE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_int_equal(own_mapping_adopt(memory, SIZE_BYTES, &mapping), 0);
        assert_int_equal(vm_has_flag(memory, "dd"), dumped == 0);
        assert_true(own_mapping_unmap(mapping));
    }
    own_mapping_set_dumped(false);
}

/* --- threads --- */

static atomic_bool stop;

static void *map_and_unmap(void *argument) {
    int fd = *(int *)argument;

    while (!atomic_load(&stop)) {
        struct own_mapping *mapping;
        if (own_mapping_make(fd, SIZE_BYTES, ALIGN_BYTES, &mapping) != 0)
            return argument;
        *(volatile char *)mapping->memory = 1;
        if (!own_mapping_unmap(mapping))
            return argument;
    }
    return NULL;
}

/* Whether no memory of the file can be reached here. Makes system calls alone. */
static int has_none_of_the_file(void *argument) {
    char text[4096], name[16] = "";
    size_t length = 0;
    bool is_shared = false, found = false;
    unsigned column = 0;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    ssize_t n;

    (void)argument;
    while ((n = read(fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < n; i++) {
            if (text[i] == ' ')
                column++;
            if (column == 1 && text[i] == 's')
                is_shared = true;
            if (length < sizeof name - 1 && text[i] == "/memfd:test-own"[length])
                name[length++] = text[i];
            else if (length < sizeof name - 1)
                length = text[i] == '/';
            if (text[i] == '\n') {
                found = found || (is_shared && length == sizeof name - 1);
                is_shared = false;
                length = column = 0;
            }
        }
    close(fd);
    return found ? 1 : 0;
}

static void a_child_that_is_forked_while_threads_map_and_unmap_has_none_of_it(void **state) {
    int fd = memory_file(SIZE_BYTES);
    struct own_mapping *kept = make(SIZE_BYTES);
    pthread_t threads[3];
    void *failed;

    (void)state;
    atomic_store(&stop, false);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, map_and_unmap, &fd), 0);
    for (unsigned i = 0; i < 30; i++) {
        assert_int_equal(in_child(has_none_of_the_file, NULL), 0);
        ASSERT_SEGV(in_child(read_at_once, kept->memory));
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(test_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_true(own_mapping_unmap(kept));
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_access_in_a_child_ends_it_whatever_it_has_mapped),
        cmocka_unit_test(a_handler_of_another_library_does_not_fill_the_hole),
        cmocka_unit_test(a_hole_that_was_not_inherited_is_filled_around_what_is_there),
        cmocka_unit_test(addresses_that_were_given_back_are_a_childs_to_use),
        cmocka_unit_test(a_child_without_handlers_inherits_nothing_before_and_after_a_fork),
        cmocka_unit_test(core_files_have_the_memory_where_it_was_wanted_alone),
        cmocka_unit_test(a_child_that_is_forked_while_threads_map_and_unmap_has_none_of_it),
    };
    /* First of all: handlers of children run in the order in which they were registered. */
    pthread_atfork(NULL, NULL, other_library_in_child);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
