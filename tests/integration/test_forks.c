/* SPDX-License-Identifier: Apache-2.0 */
/* Forked children and core files of a client's process, whose memory neither of them has. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "tests/integration/cache_fixture.h"
#include "tests/vm_flags.h"

#define SIZE_BYTES  (15 * MIB)
#define CHILD_BYTES (15 * MIB) /* the sizes that would fit the hole */

struct part {
    unsigned kind;
    char *memory;
};

/* The child takes memory as a worker does: from a client of its own, and from the system. */
static int take_memory(void) {
    for (uint64_t size = 64 * MIB; size >= MIB; size /= 2) {
        char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return 2;
        memory[0] = 1;
    }
    if (test_host_exports_vmm())
        return 0; /* such memory is CUDA's, which a child has not */
    struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_CUDA, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer;
    if (gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_HOST), CHILD_BYTES, GPUPOOL_NO_STREAM,
                        TEST_WAIT_NS, 0, &buffer) < 0)
        return 3;
    memset(buffer.data, 1, CHILD_BYTES);
    return 0;
}

static int write_in_child(void *argument) {
    const struct part *part = argument;
    int r = take_memory();

    if (r == 0)
        *(volatile char *)part->memory = 9;
    return r;
}

static int write_in_grandchild(void *argument) {
    int status, r = take_memory();

    pid_t pid = fork();
    if (pid == 0)
        _exit(write_in_child(argument));
    if (pid < 0 || test_reap(pid, &status) != 0 || !WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        return 4;
    if (r == 0)
        *(volatile char *)((const struct part *)argument)->memory = 9;
    return r;
}

static void assert_ends_by_segv(int (*main)(void *), void *argument) {
    int status;

    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would report it */
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        _exit(main(argument));
    }
    TEST_REAP(pid, &status);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        fail_msg("the child ended with the status 0x%x, not by SIGSEGV", (unsigned)status);
}

/* Memory of the device is the host's on simulated GPUs alone. */
static bool can_be_read(unsigned kind) {
    return kind == GPUPOOL_POOL_HOST || (test_has_device() && test_is_simulated());
}

static void a_childs_access_to_its_parents_memory_ends_it(void **state) {
    struct gpupool_client *client = open_cached();

    (void)state;
    for (unsigned kind = GPUPOOL_POOL_DEVICE; kind <= GPUPOOL_POOL_HOST; kind++) {
        if (!can_be_read(kind))
            continue;
        struct gpupool_buffer buffer = acquire(client, kind, SIZE_BYTES, stream_of(kind));
        memset(buffer.data, 7, SIZE_BYTES);
        for (unsigned at = 0; at < SIZE_BYTES; at += SIZE_BYTES - 1) {
            struct part part = {kind, (char *)buffer.data + at};
            if (!TEST_IS_THREAD_SANITIZED) {
                assert_ends_by_segv(write_in_child, &part);
                assert_ends_by_segv(write_in_grandchild, &part);
            }
        }
        for (unsigned at = 0; at < SIZE_BYTES; at++)
            assert_int_equal(((char *)buffer.data)[at], 7);
        MUST(gpupool_release(client, &buffer, stream_of(kind)));
    }
    gpupool_close(client);
}

/* The words of fences and boards are another client's soon after the parent's end. */
static void a_childs_access_to_its_parents_page_ends_it(void **state) {
    struct gpupool_client *client = open_cached();

    (void)state;
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, 4096, GPUPOOL_NO_STREAM);
    struct part part = {GPUPOOL_POOL_HOST, (char *)client->session.page.memory};
    assert_non_null(part.memory);
    if (!TEST_IS_THREAD_SANITIZED)
        assert_ends_by_segv(write_in_child, &part);
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    gpupool_close(client);
}

static void core_files_have_memory_of_pools_where_the_environment_says_so(void **state) {
    static const char *const values[] = {NULL, "0", "1"};

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        if (values[i] != NULL)
            setenv("GPUPOOL_CORE_DUMP", values[i], 1);
        struct gpupool_client *client = open_cached();
        struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_HOST, 4096, GPUPOOL_NO_STREAM);
        assert_int_equal(vm_has_flag(buffer.data, "dd"), i < 2);
        MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
        if (test_has_device() && test_is_simulated()) {
            buffer = acquire(client, GPUPOOL_POOL_DEVICE, 4096, NULL);
            assert_true(vm_has_flag(buffer.data, "dd")); /* as on a GPU, whose memory no core file has */
            MUST(gpupool_release(client, &buffer, NULL));
        }
        gpupool_close(client);
    }
    struct gpupool_client *client;
    setenv("GPUPOOL_CORE_DUMP", "yes", 1);
    MUST_BE(gpupool_open(&(struct gpupool_options){.struct_size = sizeof(struct gpupool_options),
                                                   .socket = daemon_.socket},
                         &client),
            GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "GPUPOOL_CORE_DUMP is 'yes'"));
    unsetenv("GPUPOOL_CORE_DUMP");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_childs_access_to_its_parents_memory_ends_it),
        cmocka_unit_test(a_childs_access_to_its_parents_page_ends_it),
        cmocka_unit_test(core_files_have_memory_of_pools_where_the_environment_says_so),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
