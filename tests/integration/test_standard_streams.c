/* SPDX-License-Identifier: Apache-2.0 */
/* Clients in a process whose standard streams are closed: no descriptor of the library is one of these. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>

#include "tests/integration/cache_fixture.h"

#define STREAMS 3u

static unsigned closed_streams; /* bit i: descriptor i */

static int taken_now(void) {
    for (int i = 0; i < (int)STREAMS; i++)
        if ((closed_streams & 1u << i) != 0 && fcntl(i, F_GETFD) >= 0)
            return i;
    return -1;
}

/* The first of the closed streams that is open and stays so, or -1. A thread of the library may be about to
 * move a descriptor that the kernel has just given it. */
static int taken(void) {
    uint64_t end_ns = clock_now_ns() + TEST_WAIT_NS;
    while (taken_now() >= 0 && clock_now_ns() < end_ns)
        sched_yield();
    return taken_now();
}

/* Returns the line of a call that failed; and of one that left a descriptor among the closed streams, with
 * 1000 times that descriptor plus 1. */
#define STEP(call)                                                                                           \
    do {                                                                                                     \
        if ((call) < 0)                                                                                      \
            return __LINE__;                                                                                 \
        if (taken() >= 0)                                                                                    \
            return 1000 * (taken() + 1) + __LINE__;                                                          \
    } while (0)

static int use_pool(struct gpupool_client *client, struct gpupool_client *other, unsigned kind) {
    void *stream = stream_of(kind);
    uint32_t pool;
    struct gpupool_buffer buffers[4], attached;
    struct gpupool_token token;
    uint64_t request;

    STEP(kind == GPUPOOL_POOL_HOST ? gpupool_host_pool(client, -1, &pool)
                                   : gpupool_device_pool(client, 0, &pool));
    for (unsigned i = 0; i < 4; i++) {
        STEP(
            gpupool_acquire(client, pool, (uint64_t)(i + 1) * 4 * MIB, stream, TEST_WAIT_NS, 0, &buffers[i]));
        if (kind == GPUPOOL_POOL_HOST)
            memset(buffers[i].data, 1, buffers[i].size_bytes);
    }
    STEP(gpupool_share(client, &buffers[0], stream, &token));
    STEP(gpupool_attach(other, &token, stream, 0, &attached));
    STEP(gpupool_release(other, &attached, stream));
    STEP(gpupool_send(client, &buffers[1], stream, 1, NS_PER_S, &token));
    STEP(gpupool_attach(other, &token, stream, 0, &attached));
    STEP(gpupool_release(other, &attached, stream));
    for (unsigned i = 0; i < 4; i++)
        STEP(gpupool_release(client, &buffers[i], stream));
    STEP(gpupool_acquire_begin(client, pool, 20 * MIB, stream, TEST_WAIT_NS, 0, &request));
    STEP(gpupool_request_fd(client, request));
    STEP(gpupool_acquire_end(client, request, &buffers[0]));
    STEP(gpupool_release(client, &buffers[0], stream));
    STEP(gpupool_trim(client, NULL));
    return 0;
}

static int use_client(const char *socket, uint32_t flags) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client, *other;

    options.socket = socket;
    options.flags = flags;
    STEP(gpupool_open(&options, &client));
    options.socket = gpupool_socket_path(client);
    STEP(gpupool_open(&options, &other));
    if ((flags & GPUPOOL_OPEN_NO_THREAD) != 0)
        STEP(gpupool_fd(client));
    for (unsigned kind = GPUPOOL_POOL_DEVICE; kind <= GPUPOOL_POOL_HOST; kind++) {
        if (kind == GPUPOOL_POOL_DEVICE &&
            ((flags & GPUPOOL_OPEN_NO_CUDA) != 0 || gpupool_gpu_kind(client) == GPUPOOL_GPU_NONE))
            continue;
        int r = use_pool(client, other, kind);
        if (r != 0)
            return r;
    }
    gpupool_close(other);
    gpupool_close(client);
    return 0;
}

/* Descriptors that CUDA opens for itself are out of the library's hands: a process on a real GPU uses host
 * memory alone. */
static int use_library(const char *socket) {
    uint32_t flags = strcmp(test_gpu(), "cuda") == 0 ? GPUPOOL_OPEN_NO_CUDA : 0;
    int r = use_client(socket, flags);
    if (r == 0)
        r = use_client(socket, flags | GPUPOOL_OPEN_NO_THREAD);
    if (r == 0)
        r = use_client("private", flags);
    return r;
}

static void the_librarys_descriptors_are_above_the_standard_streams(void **state) {
    char name[] = "/tmp/gpupool-streams-XXXXXX";

    (void)state;
    int out = mkstemp(name); /* the child's word */
    assert_true(out >= (int)STREAMS);
    assert_int_equal(unlink(name), 0);
    setenv("GPUPOOL_DAEMON", test_daemon_path(), 1);
    char arguments[64];
    snprintf(arguments, sizeof arguments, "--gpu %s", test_gpu());
    setenv("GPUPOOL_DAEMON_ARGS", arguments, 1);
    for (unsigned mask = 0; mask < 1u << STREAMS; mask++) {
        char text[16], out_text[16];
        snprintf(text, sizeof text, "%u", mask);
        snprintf(out_text, sizeof out_text, "%d", out);
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            for (int i = 0; i < (int)STREAMS; i++)
                if ((mask & 1u << i) != 0)
                    close(i);
            execl("/proc/self/exe", "standard_streams", "--streams", text, daemon_.socket, out_text, NULL);
            _exit(1);
        }
        int status = test_wait(pid), line = -1;
        if (pread(out, &line, sizeof line, 0) != sizeof line || line != 0 || status != 0)
            fail_msg("with %s, %s and %s open: %s %d, line %d; status 0x%x", mask & 1 ? "no 0" : "0",
                     mask & 2 ? "no 1" : "1", mask & 4 ? "no 2" : "2",
                     line >= 1000 ? "the library has descriptor" : "a call failed", line / 1000 - 1,
                     line % 1000, (unsigned)status);
        assert_int_equal(ftruncate(out, 0), 0);
    }
    close(out);
}

/* The part of a process with closed streams. */
static int child_main(char **argv) {
    closed_streams = (unsigned)atoi(argv[2]);
    int out = atoi(argv[4]), line = use_library(argv[3]);
    return pwrite(out, &line, sizeof line, 0) == sizeof line ? 0 : 2;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_librarys_descriptors_are_above_the_standard_streams),
    };
    if (argc == 5 && strcmp(argv[1], "--streams") == 0)
        return child_main(argv);
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
