/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that the daemon's control group allows: trees of files as kernels, containers and systemd make
 * them. */
#include <errno.h>
#include <ftw.h>
#include <sys/stat.h>

#include "base/units.h"
#include "daemon/supply/cgroup.h"
#include "directory_fixture.h"
#include "unit.h"

#define V1_NONE "9223372036854771712\n"

static int remove_one(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)status;
    (void)type;
    return place->level == 0 ? 0 : remove(path);
}

static void clear_tree(void) {
    assert_int_equal(nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

/* Writes a file below the root, and makes the directories on its way. */
static void put(const char *path, const char *text) {
    char whole[512];

    int n = snprintf(whole, sizeof whole, "%s%s", directory, path);
    assert_true(n > 0 && (size_t)n < sizeof whole);
    for (char *slash = whole + strlen(directory) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        assert_true(mkdir(whole, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(whole, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static struct cgroup_memory read_tree(void) {
    struct cgroup_memory memory;
    cgroup_memory(directory, &memory);
    return memory;
}

/* Checks the limit, its place, and what is left. */
static void check(uint64_t limit_bytes, uint64_t available_bytes, const char *group, const char *setting) {
    struct cgroup_memory memory = read_tree();

    assert_int_equal(memory.limit_bytes, limit_bytes);
    assert_int_equal(memory.available_bytes, available_bytes);
    if (limit_bytes == UINT64_MAX)
        return;
    assert_string_equal(memory.group, group);
    assert_string_equal(memory.setting, setting);
    assert_string_equal(memory.unit_setting,
                        strcmp(setting, "memory.high") == 0 ? "MemoryHigh" : "MemoryMax");
}

static void check_none(void) {
    check(UINT64_MAX, UINT64_MAX, NULL, NULL);
}

static void no_files_are_no_limit(void **state) {
    (void)state;
    check_none();
    put("/proc/self/cgroup", "0::/a\n");
    check_none();
    put("/proc/self/mountinfo", "25 30 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    check_none();
    put("/proc/self/cgroup", "nonsense\n:\n::\n0:\n0::\n");
    put("/proc/self/mountinfo", "nonsense - \n - cgroup2 x y\n1 2 - cgroup2 x y\n");
    check_none();
    clear_tree();
}

static void the_least_of_a_group_and_its_ancestors_counts(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/system.slice/gpupoold.service\n");
    put("/proc/self/mountinfo",
        "24 30 0:21 / /proc rw - proc proc rw\n"
        "25 30 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
    put("/sys/fs/cgroup/system.slice/gpupoold.service/memory.max", "max\n");
    put("/sys/fs/cgroup/system.slice/gpupoold.service/memory.current", "1000\n");
    check_none();
    put("/sys/fs/cgroup/system.slice/memory.max", "5000\n");
    put("/sys/fs/cgroup/system.slice/memory.current", "4200\n");
    put("/sys/fs/cgroup/system.slice/memory.stat", "anon 1\ninactive_file 150\nactive_file 50\nshmem 4000\n");
    check(5000, 1000, "/system.slice", "memory.max");
    put("/sys/fs/cgroup/system.slice/gpupoold.service/memory.max", "4000\n");
    check(4000, 1000, "/system.slice/gpupoold.service", "memory.max"); /* less is left in the slice */
    put("/sys/fs/cgroup/system.slice/gpupoold.service/memory.high", "3000\n");
    check(3000, 1000, "/system.slice/gpupoold.service", "memory.high");
    put("/sys/fs/cgroup/system.slice/gpupoold.service/memory.current", "3500\n");
    check(3000, 0, "/system.slice/gpupoold.service", "memory.high");
    put("/sys/fs/cgroup/memory.max", "0\n");
    check(0, 0, "/", "memory.max");
    clear_tree();
}

/* A container: its own group is the root of what it sees. */
static void a_namespaces_root_counts(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", "25 30 0:22 / /sys/fs/cgroup ro - cgroup2 cgroup ro\n");
    put("/sys/fs/cgroup/memory.max", "314572800\n");
    put("/sys/fs/cgroup/memory.current", "104857600\n");
    check(300 * MIB, 200 * MIB, "/", "memory.max");
    /* joined from outside, such as by docker exec: /proc names a path that is not below the mount */
    put("/proc/self/cgroup", "0::/../other\n");
    check(300 * MIB, 200 * MIB, "/", "memory.max");
    clear_tree();
}

static void version_1_counts_too(void **state) {
    (void)state;
    put("/proc/self/cgroup",
        "12:cpu,cpuacct:/elsewhere\n4:hugetlb,memory:/docker/0123\n1:name=systemd:/x\n0::/y\n");
    put("/proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "33 31 0:30 / /sys/fs/cgroup/memory rw shared:1 master:2 - cgroup cgroup rw,hugetlb,memory\n"
        "34 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NONE);
    put("/sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", V1_NONE);
    put("/sys/fs/cgroup/cpu/elsewhere/memory.limit_in_bytes", "1\n");
    put("/sys/fs/cgroup/unified/y/memory.current", "1\n");
    check_none();
    put("/sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "8192\n");
    put("/sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "6000\n");
    put("/sys/fs/cgroup/memory/docker/memory.stat",
        "cache 5000\ninactive_file 9\ntotal_inactive_file 1000\ntotal_active_file 1000\n");
    put("/sys/fs/cgroup/memory/docker/0123/memory.stat", "hierarchical_memory_limit 8192\n");
    check(8192, 4192, "/docker", "memory.limit_in_bytes");
    clear_tree();
}

/* Without a namespace of its own, a container sees its group at the mount, under its whole name. */
static void a_mounted_groups_hidden_ancestors_count_in_version_1(void **state) {
    (void)state;
    put("/proc/self/cgroup", "4:memory:/docker/0123/inner\n");
    put("/proc/self/mountinfo",
        "33 31 0:30 /docker/0123 /sys/fs/cgroup\\040x/memory rw - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup x/memory/inner/memory.limit_in_bytes", "10000\n");
    put("/sys/fs/cgroup x/memory/inner/memory.usage_in_bytes", "2000\n");
    check(10000, 8000, "/docker/0123/inner", "memory.limit_in_bytes");
    put("/sys/fs/cgroup x/memory/memory.limit_in_bytes", "9000\n");
    put("/sys/fs/cgroup x/memory/memory.usage_in_bytes", "2000\n");
    check(9000, 7000, "/docker/0123", "memory.limit_in_bytes");
    put("/sys/fs/cgroup x/memory/inner/memory.stat", "hierarchical_memory_limit 7000\n");
    check(7000, 5000, "/docker/0123/inner", "hierarchical_memory_limit");
    clear_tree();
}

static void a_long_name_is_cut_at_its_beginning(void **state) {
    char group[201], line[300], path[300];

    (void)state;
    for (unsigned i = 0; i < 200; i++)
        group[i] = i % 20 == 0 ? '/' : 'a' + (char)(i / 20);
    group[200] = '\0';
    snprintf(line, sizeof line, "0::%s\n", group);
    snprintf(path, sizeof path, "/c%s/memory.max", group);
    put("/proc/self/cgroup", line);
    put("/proc/self/mountinfo", "25 30 0:22 / /c rw - cgroup2 cgroup2 rw\n");
    put(path, "4096\n");
    struct cgroup_memory memory = read_tree();
    assert_int_equal(memory.limit_bytes, 4096);
    assert_int_equal(strlen(memory.group), CGROUP_NAME_SIZE - 1);
    assert_memory_equal(memory.group, "...", 3);
    assert_string_equal(memory.group + 3, group + 200 - (CGROUP_NAME_SIZE - 4));
    clear_tree();
}

/* On this machine, whatever it has. */
static void the_machines_own_files_can_be_read(void **state) {
    struct cgroup_memory memory;

    (void)state;
    cgroup_memory("", &memory);
    assert_true(memory.available_bytes <= memory.limit_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_files_are_no_limit),
        cmocka_unit_test(the_least_of_a_group_and_its_ancestors_counts),
        cmocka_unit_test(a_namespaces_root_counts),
        cmocka_unit_test(version_1_counts_too),
        cmocka_unit_test(a_mounted_groups_hidden_ancestors_count_in_version_1),
        cmocka_unit_test(a_long_name_is_cut_at_its_beginning),
        cmocka_unit_test(the_machines_own_files_can_be_read),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
