/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads that copy: a client's copy workers and its callers. Any number of callers share them, they are
 * there from the first large copy until the client closes, and what its threads do to the program is what
 * memcpy() would have done in the calling one.
 */
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include "tests/integration/staging_fixture.h"

struct caller {
    struct gpupool_client *client;
    unsigned number;
    pthread_t thread;
};

static void *call_often(void *argument) {
    const struct caller *caller = argument;
    void *stream;

    MUST(gpupool_stream_create(caller->client, 0, &stream));
    for (unsigned round = 0; round < 12; round++)
        there_and_back(caller->client, round % 3 == 2 ? GPUPOOL_PER_THREAD : stream,
                       (round + caller->number) % 5 * 3 * CHUNK + 77, (round + caller->number) % 8);
    MUST(gpupool_trim(caller->client, NULL));
    MUST(gpupool_stream_destroy(caller->client, 0, stream));
    return NULL;
}

static void several_callers_share_the_copy_workers(void **state) {
    struct caller callers[4];
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(4, 0);
    for (unsigned i = 0; i < 4; i++) {
        callers[i] = (struct caller){.client = client, .number = i};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        TEST_JOIN(callers[i].thread, NULL);
    expect_no_blocks(client);
    close_cached(client);
}

/* By their name: a driver has threads too. */
static unsigned copy_worker_threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *task;
    unsigned count = 0;

    assert_non_null(tasks);
    while ((task = readdir(tasks)) != NULL) {
        char path[300], name[32] = {0};
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        _cleanup_(fclosep) FILE *file = fopen(path, "re");
        count +=
            file != NULL && fgets(name, sizeof name, file) != NULL && strcmp(name, "gpupool-staging\n") == 0;
    }
    closedir(tasks);
    return count;
}

static void copy_much(struct gpupool_client *client) {
    there_and_back(client, NULL, 20 * CHUNK, 0);
}

static void threads_are_started_by_the_first_large_copy_and_end_with_the_client(void **state) {
    (void)state;
    SKIP_WITHOUT_DEVICE();
    WAIT_UNTIL(copy_worker_threads() == 0);
    struct gpupool_client *client = open_staging(4, 0);
    there_and_back(client, NULL, CHUNK, 0);
    assert_int_equal(copy_workers_started(client), 0);
    for (unsigned i = 0; i < 2; i++) {
        copy_much(client);
        assert_int_equal(copy_workers_started(client), 3);
        WAIT_UNTIL(copy_worker_threads() == 3); /* a thread has its name when it has run */
    }
    close_cached(client);
    WAIT_UNTIL(copy_worker_threads() == 0);

    client = open_staging(4, GPUPOOL_OPEN_NO_THREAD);
    copy_much(client);
    assert_int_equal(copy_worker_threads(), 0);
    assert_int_equal(copy_workers_started(client), 0);
    close_cached(client);
}

static void a_forked_child_is_refused_and_leaves_the_copy_workers_alone(void **state) {
    struct gpupool_client *client;
    char memory[16] = {0};

    (void)state;
    SKIP_WITHOUT_DEVICE();
    if (!test_is_simulated())
        skip();
    client = open_staging(4, 0);
    copy_much(client);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, 16, NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int up = gpupool_upload(client, 0, device.data, memory, 16, NULL);
        int down = gpupool_download(client, 0, memory, device.data, 16, NULL);
        gpupool_close(client);
        _exit(up == GPUPOOL_E_FORKED && down == GPUPOOL_E_FORKED ? 0 : 1);
    }
    assert_true(pid > 0);
    assert_int_equal(test_wait(pid), 0);
    copy_much(client);
    MUST(gpupool_release(client, &device, NULL));
    expect_no_blocks(client);
    close_cached(client);
}

/* --- memory whose faults the program handles --- */

/* The data of a handler. Pages come to be accessible one by one, as with a garbage collector's barriers, or a
 * program that maps parts of a file when they are touched. */
static struct {
    char *begin;
    uint64_t size_bytes;
    pid_t caller;
    uint64_t until_ns;
    _Atomic unsigned of_caller, of_workers;
} lazy;

/* The calling thread leaves some to the copy workers. */
static void on_fault(int number, siginfo_t *info, void *context) {
    char *at = info->si_addr;

    (void)context;
    if (at < lazy.begin || at >= lazy.begin + lazy.size_bytes) {
        signal(number, SIG_DFL);
        return;
    }
    if (gettid() == lazy.caller) {
        atomic_fetch_add(&lazy.of_caller, 1);
        while (atomic_load(&lazy.of_workers) == 0 && clock_now_ns() < lazy.until_ns)
            sched_yield();
    } else {
        atomic_fetch_add(&lazy.of_workers, 1);
    }
    char *page = lazy.begin + (uint64_t)(at - lazy.begin) / CHUNK * CHUNK;
    mprotect(page, CHUNK, PROT_READ | PROT_WRITE);
}

static void make_lazy(void) {
    assert_int_equal(mprotect(lazy.begin, lazy.size_bytes, PROT_NONE), 0);
    lazy.caller = gettid();
    lazy.until_ns = clock_now_ns() + 60 * NS_PER_S;
    atomic_store(&lazy.of_caller, 0);
    atomic_store(&lazy.of_workers, 0);
}

static void a_fault_that_the_program_handles_is_handled_on_every_thread(void **state) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    const uint64_t size = 40 * CHUNK;
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(3, 0);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, NULL);
    lazy.size_bytes = size;
    lazy.begin = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(lazy.begin != MAP_FAILED);
    fill(lazy.begin, size, 5);
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    make_lazy();
    MUST(gpupool_upload(client, 0, device.data, lazy.begin, size, NULL));
    assert_true(atomic_load(&lazy.of_workers) > 0);
    expect_on_device(client, device.data, size, 5, NULL);
    memset(lazy.begin, 0, size);
    make_lazy();
    MUST(gpupool_download(client, 0, lazy.begin, device.data, size, NULL));
    assert_true(atomic_load(&lazy.of_workers) > 0);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    expect(lazy.begin, size, 5);
    munmap(lazy.begin, size);
    MUST(gpupool_release(client, &device, NULL));
    expect_no_blocks(client);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_callers_share_the_copy_workers),
        cmocka_unit_test(threads_are_started_by_the_first_large_copy_and_end_with_the_client),
        cmocka_unit_test(a_forked_child_is_refused_and_leaves_the_copy_workers_alone),
        cmocka_unit_test(a_fault_that_the_program_handles_is_handled_on_every_thread),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
