/* SPDX-License-Identifier: Apache-2.0 */
/* Shared mappings at addresses that suit huge pages: where they lie, what they show, and that nothing of the
 * address space around them stays taken. */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mapping.h"
#include "base/units.h"
#include "unit.h"

/* The address space that this process has taken. */
static uint64_t taken_bytes(void) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int memory_file(uint64_t size_bytes) {
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size_bytes), 0);
    return fd;
}

static void a_mapping_lies_where_it_was_wanted_and_takes_no_more_than_its_size(void **state) {
    static const uint64_t aligns[] = {4 * KIB, 2 * MIB, 1 * GIB};
    (void)state;
    taken_bytes(); /* what the C library takes for a file is taken now */
    int fd = memory_file(6 * MIB);
    assert_int_equal(pwrite(fd, "here", 4, 6 * MIB - 4), 4);
    for (unsigned i = 0; i < sizeof aligns / sizeof *aligns; i++) {
        void *memory[4];
        uint64_t before = taken_bytes();
        for (unsigned j = 0; j < 4; j++) {
            assert_int_equal(mapping_make(fd, 6 * MIB, aligns[i], &memory[j]), 0);
            assert_int_equal((uintptr_t)memory[j] % aligns[i], 0);
            assert_memory_equal((char *)memory[j] + 6 * MIB - 4, "here", 4);
            assert_int_equal(taken_bytes(), before + (j + 1) * 6 * MIB);
        }
        memcpy(memory[0], "all see it", 10);
        assert_memory_equal(memory[3], "all see it", 10);
        for (unsigned j = 0; j < 4; j++)
            munmap(memory[j], 6 * MIB);
        assert_int_equal(taken_bytes(), before);
    }
    close(fd);
}

static void what_cannot_be_mapped_leaves_nothing(void **state) {
    void *memory = NULL;
    (void)state;
    int fd = memory_file(2 * MIB), reader = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    uint64_t before = taken_bytes();
    assert_int_equal(mapping_make(-1, 2 * MIB, 2 * MIB, &memory), -EBADF);
    assert_int_equal(mapping_make(reader, 2 * MIB, 2 * MIB, &memory), -EACCES);
    assert_int_equal(mapping_make(fd, UINT64_MAX - 4 * MIB + 1, 2 * MIB, &memory), -ENOMEM);
    assert_int_equal(mapping_make(fd, UINT64_MAX - 1 * MIB + 1, 2 * MIB, &memory), -ENOMEM);
    assert_int_equal(mapping_make(fd, 0, 2 * MIB, &memory), -EINVAL);
    assert_null(memory);
    assert_int_equal(taken_bytes(), before);
    close(reader);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mapping_lies_where_it_was_wanted_and_takes_no_more_than_its_size),
        cmocka_unit_test(what_cannot_be_mapped_leaves_nothing),
    };
    return cmocka_run_group_tests_name("mapping", tests, NULL, NULL);
}
