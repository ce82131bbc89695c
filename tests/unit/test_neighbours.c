/* SPDX-License-Identifier: Apache-2.0 */
/* Other daemons of the machine, in a directory that looks like /proc. */
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/supply/neighbours.h"
#include "unit.h"

#define OWN 10

static char proc[] = "/tmp/gpupool-test-proc-XXXXXX";

static void write_file(unsigned pid, const char *name, const char *text, size_t size) {
    char path[256];

    snprintf(path, sizeof path, "%s/%u", proc, pid);
    (void)mkdir(path, 0755);
    snprintf(path, sizeof path, "%s/%u/%s", proc, pid, name);
    _cleanup_(fclosep) FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
}

#define RUN(pid, comm, line)                                                                                 \
    do {                                                                                                     \
        write_file((pid), "comm", (comm "\n"), sizeof(comm "\n") - 1);                                       \
        write_file((pid), "cmdline", (line), sizeof(line));                                                  \
    } while (0)

static void other_programs_and_this_one_are_none(void **state) {
    char path[256];
    (void)state;

    RUN(OWN, "gpupoold", "gpupoold");
    RUN(11, "gpupoolctl", "gpupoolctl\0top");
    RUN(12, "sh", "sh\0-c\0gpupoold");
    snprintf(path, sizeof path, "%s/self", proc);
    assert_int_equal(mkdir(path, 0755), 0);
    snprintf(path, sizeof path, "%s/13", proc); /* it has just ended */
    assert_int_equal(mkdir(path, 0755), 0);
    assert_int_equal(neighbours_find(proc, OWN, 1), 0);
    assert_int_equal(neighbours_find("/nonexistent", OWN, 1), 0);
}

static void daemons_without_a_gpu_are_none(void **state) {
    (void)state;

    RUN(20, "gpupoold", "gpupoold\0--gpu\0sim\0--private");
    RUN(21, "gpupoold", "gpupoold\0--socket\0/tmp/x\0--gpu=none");
    assert_int_equal(neighbours_find(proc, OWN, 1), 0);
}

static void another_daemon_is_found(void **state) {
    (void)state;

    RUN(30, "gpupoold", "/usr/sbin/gpupoold\0--socket\0sim");
    assert_int_equal(neighbours_find(proc, OWN, 1), 30);
    assert_int_equal(neighbours_find(proc, 30, 1), OWN);
    assert_int_equal(neighbours_find(proc, OWN, 30), 0); /* its keeper */
}

static int make_proc(void **state) {
    (void)state;
    return mkdtemp(proc) == NULL;
}

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *where) {
    (void)status, (void)type, (void)where;
    return remove(path);
}

static int remove_proc(void **state) {
    (void)state;
    return nftw(proc, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_programs_and_this_one_are_none),
        cmocka_unit_test(daemons_without_a_gpu_are_none),
        cmocka_unit_test(another_daemon_is_found),
    };
    return cmocka_run_group_tests(tests, make_proc, remove_proc);
}
