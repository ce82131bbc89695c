/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files to a device: all bytes arrive, from the offset that was asked for, whatever kind of file it is and
 * however its reads are cut up; and what cannot be read is said, with the place, and leaves no block behind.
 *
 * Calls of the C library fail here when a test wants them to: the program is linked so that they come by
 * (--wrap).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "tests/integration/staging_fixture.h"

/* --- calls that fail --- */

enum call {
    NO_CALL,
    PREAD,
    READ,
    PTHREAD_CREATE,
    CALLOC,
};

/* The nth call from now on fails with error; error 0: it does half of what it was to do. */
static struct {
    _Atomic int call, error;
    _Atomic unsigned nth, seen;
} fault;

static void arm(enum call call, unsigned nth, int error) {
    atomic_store(&fault.seen, 0);
    atomic_store(&fault.nth, nth);
    atomic_store(&fault.error, error);
    atomic_store(&fault.call, (int)call);
}

/* Returns whether it came to that. */
static bool disarm(void) {
    atomic_store(&fault.call, NO_CALL);
    return atomic_load(&fault.seen) >= atomic_load(&fault.nth);
}

static bool fails(enum call call) {
    return atomic_load(&fault.call) == (int)call &&
           atomic_fetch_add(&fault.seen, 1) + 1 == atomic_load(&fault.nth);
}

/* A read that fails in the calling thread while others are under way in the copy workers: it fails when one
 * of those has begun, and that one goes on when the calling thread waits for it, or has returned. */
static struct {
    _Atomic bool is_armed, waits, has_returned;
    _Atomic unsigned begun, under_way;
    pthread_t caller;
} slow;

static bool is_caller(void) {
    return pthread_equal(pthread_self(), slow.caller) != 0;
}

static void read_slowly(void) {
    if (is_caller()) {
        WAIT_UNTIL(atomic_load(&slow.begun) > 0);
        arm(PREAD, 1, EIO);
        return;
    }
    atomic_fetch_add(&slow.under_way, 1);
    atomic_fetch_add(&slow.begun, 1);
    WAIT_UNTIL(atomic_load(&slow.waits) || atomic_load(&slow.has_returned));
}

int __real_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock) {
    if (atomic_load(&slow.is_armed) && is_caller())
        atomic_store(&slow.waits, true);
    return __real_pthread_cond_wait(condition, lock);
}

ssize_t __real_pread(int fd, void *memory, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *memory, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *memory, size_t size, off_t offset) {
    if (atomic_load(&slow.is_armed))
        read_slowly();
    if (atomic_load(&slow.is_armed) && !is_caller()) {
        ssize_t n = __real_pread(fd, memory, size, offset);
        atomic_fetch_sub(&slow.under_way, 1);
        return n;
    }
    if (!fails(PREAD))
        return __real_pread(fd, memory, size, offset);
    errno = atomic_load(&fault.error);
    return errno != 0 ? -1 : __real_pread(fd, memory, (size + 1) / 2, offset);
}

ssize_t __real_read(int fd, void *memory, size_t size);
ssize_t __wrap_read(int fd, void *memory, size_t size);
ssize_t __wrap_read(int fd, void *memory, size_t size) {
    if (size < CHUNK || !fails(READ)) /* others read too */
        return __real_read(fd, memory, size);
    errno = atomic_load(&fault.error);
    return errno != 0 ? -1 : __real_read(fd, memory, (size + 1) / 2);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument) {
    return fails(PTHREAD_CREATE) ? atomic_load(&fault.error)
                                 : __real_pthread_create(thread, attributes, start, argument);
}

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size) {
    return fails(CALLOC) ? NULL : __real_calloc(count, size);
}

/* --- files --- */

static void write_all(int fd, const char *from, uint64_t size_bytes) {
    for (uint64_t done = 0; done < size_bytes;) {
        ssize_t n = write(fd, from + done, size_bytes - done);
        assert_true(n > 0 || errno == EINTR);
        done += n > 0 ? (uint64_t)n : 0;
    }
}

/* One with the pattern in it. */
static int make_file(uint64_t size_bytes, uint64_t seed) {
    _cleanup_(freep) char *contents = need_memory(size_bytes);
    int fd = memfd_create("staging", MFD_CLOEXEC);

    assert_true(fd >= 0);
    fill(contents, size_bytes, seed);
    write_all(fd, contents, size_bytes);
    return fd;
}

/* The pattern from a place on. */
static void expect_part(struct gpupool_client *client, const void *memory, uint64_t offset_bytes,
                        uint64_t size_bytes, uint64_t seed) {
    _cleanup_(freep) char *seen = need_memory(size_bytes);
    MUST(gpupool_copy(client, 0, seen, memory, size_bytes, NULL));
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    for (uint64_t i = 0; i < size_bytes; i++)
        if ((uint8_t)seen[i] != pattern(seed, offset_bytes + i))
            fail_msg("byte %" PRIu64 " of the file is another one", offset_bytes + i);
}

static void any_part_of_a_file_arrives(void **state) {
    const uint64_t size = 30 * CHUNK + 100;
    const struct {
        uint64_t offset, size;
    } parts[] = {{0, 1},        {0, size},        {1, size - 1},          {size - 1, 1},
                 {4096, CHUNK}, {100, CHUNK + 1}, {CHUNK, 5 * CHUNK - 1}, {7, 20 * CHUNK + 3}};
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        client = open_staging(threads, 0);
        _cleanup_(close_fdp) int fd = make_file(size, 5);
        off_t position = lseek(fd, 11, SEEK_SET);
        struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, NULL);
        for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
            MUST(gpupool_set(client, 0, device.data, 0, size, NULL));
            MUST(gpupool_upload_file(client, 0, device.data, fd, parts[i].offset, parts[i].size, NULL));
            expect_part(client, device.data, parts[i].offset, parts[i].size, 5);
        }
        assert_int_equal(lseek(fd, 0, SEEK_CUR), position);
        MUST(gpupool_release(client, &device, NULL));
        expect_no_blocks(client);
        close_cached(client);
    }
}

/* --- pipes and sockets --- */

struct writer {
    int fd;
    uint64_t size_bytes;
    pthread_t thread;
};

/* In pieces of odd sizes, now and then after a while. */
static void *write_pieces(void *argument) {
    struct writer *writer = argument;
    _cleanup_(freep) char *contents = need_memory(writer->size_bytes);
    uint64_t done = 0;

    fill(contents, writer->size_bytes, 6);
    for (unsigned i = 0; done < writer->size_bytes; i++) {
        uint64_t piece = 1 + i * 7919 % (2 * CHUNK), rest = writer->size_bytes - done;
        if (i % 8 == 1)
            test_pause();
        write_all(writer->fd, contents + done, piece < rest ? piece : rest);
        done += piece < rest ? piece : rest;
    }
    writer->fd = close_fd(writer->fd);
    return NULL;
}

static int alarm_every_us;
static volatile sig_atomic_t alarms;

static void on_alarm(int number) {
    (void)number;
    alarms++;
}

static void ring(int every_us) {
    const struct itimerval timer = {{0, every_us}, {0, every_us}};
    assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

static void from_a_stream(const int fds[2], uint64_t written_bytes, uint64_t wanted_bytes, int result) {
    struct gpupool_client *client = open_staging(4, 0);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, wanted_bytes, NULL);
    struct writer writer = {.fd = fds[1], .size_bytes = written_bytes};
    sigset_t alarm;

    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    MUST_BE(gpupool_upload_file(client, 0, device.data, fds[0], 1, wanted_bytes, NULL), GPUPOOL_E_INVALID);
    pthread_sigmask(SIG_BLOCK, &alarm, NULL); /* it is for the one that reads */
    assert_int_equal(pthread_create(&writer.thread, NULL, write_pieces, &writer), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
    ring(alarm_every_us);
    int r = gpupool_upload_file(client, 0, device.data, fds[0], 0, wanted_bytes, NULL);
    ring(0);
    MUST_BE(r, result);
    if (result == 0) {
        expect_part(client, device.data, 0, wanted_bytes, 6);
    } else {
        char text[64];
        snprintf(text, sizeof text, "ends at offset %" PRIu64, written_bytes);
        assert_non_null(strstr(gpupool_error_text(), text));
    }
    TEST_JOIN(writer.thread, NULL);
    MUST(gpupool_release(client, &device, NULL));
    expect_no_blocks(client);
    close_cached(client);
    close_fd(fds[0]);
}

static void what_has_no_offsets_is_read_in_order(void **state) {
    const uint64_t size = 9 * CHUNK + 5;
    int fds[2];

    (void)state;
    SKIP_WITHOUT_DEVICE();
    for (unsigned i = 0; i < 4; i++) {
        const bool ends_early = i == 3;
        if (i == 2)
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        else
            assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        if (i == 1) /* the library need not know that it does not block */
            assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
        from_a_stream(fds, size, ends_early ? size + 1 : size, ends_early ? GPUPOOL_E_INVALID : 0);
    }
}

static void signals_do_not_cut_a_file_short(void **state) {
    struct sigaction action = {.sa_handler = on_alarm}, before; /* without SA_RESTART */
    int fds[2];

    (void)state;
    SKIP_WITHOUT_DEVICE();
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        if (i == 1) /* it is poll() that is interrupted */
            assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
        alarms = 0;
        alarm_every_us = 500;
        from_a_stream(fds, 9 * CHUNK, 9 * CHUNK, 0);
        alarm_every_us = 0;
        assert_true(alarms > 0);
    }
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
}

/* --- what cannot be read --- */

static void a_file_that_ends_early_is_said_with_the_place(void **state) {
    const uint64_t size = 11 * CHUNK + 17;
    const uint64_t offsets[] = {0, 5, 3 * CHUNK, size - 1, size, size + CHUNK};
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(4, 0);
    _cleanup_(close_fdp) int fd = make_file(size, 5);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, 2 * size, NULL);
    for (unsigned i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        char text[64];
        MUST_BE(gpupool_upload_file(client, 0, device.data, fd, offsets[i], 20 * CHUNK, NULL),
                GPUPOOL_E_INVALID);
        snprintf(text, sizeof text, "ends at offset %" PRIu64 ",", offsets[i] > size ? offsets[i] : size);
        assert_non_null(strstr(gpupool_error_text(), text));
        expect_no_blocks(client);
    }
    MUST(gpupool_release(client, &device, NULL));
    close_cached(client);
}

static void what_cannot_be_read_is_said_with_its_error(void **state) {
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(3, 0);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, 9 * CHUNK, NULL);
    const struct {
        const char *path, *error;
        int flags;
    } files[] = {{"/", "EISDIR", O_RDONLY},
                 {"/proc/self/mem", "EIO", O_RDONLY}, /* nothing is mapped at its beginning */
                 {"/dev/null", "EBADF", O_WRONLY}};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++) {
        _cleanup_(close_fdp) int fd = open(files[i].path, files[i].flags | O_CLOEXEC);
        assert_true(fd >= 0);
        MUST_BE(gpupool_upload_file(client, 0, device.data, fd, 0, 9 * CHUNK, NULL), GPUPOOL_E_DRIVER);
        assert_non_null(strstr(gpupool_error_text(), "at offset 0: "));
        assert_non_null(strstr(gpupool_error_text(), files[i].error));
        expect_no_blocks(client);
    }
    MUST_BE(gpupool_upload_file(client, 0, device.data, -1, 0, 1, NULL), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "-1 is no descriptor"));
    MUST_BE(gpupool_upload_file(client, 0, device.data, 0, UINT64_MAX, 1, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_upload_file(client, 0, device.data, 0, INT64_MAX, 1, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_upload_file(client, 0, NULL, 0, 0, 1, NULL), GPUPOOL_E_INVALID);
    MUST(gpupool_release(client, &device, NULL));
    close_cached(client);
}

/* --- calls that fail, each in its turn --- */

static void any_read_that_fails_is_said_and_leaves_no_block(void **state) {
    const int errors[] = {EIO, EINTR, 0};
    const uint64_t size = 9 * CHUNK + 1, offset = 3;
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(3, 0);
    _cleanup_(close_fdp) int fd = make_file(size + offset, 5);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, NULL);
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++) {
        unsigned nth = 1;
        for (bool failed = true; failed; nth++) {
            MUST(gpupool_set(client, 0, device.data, 0, size, NULL));
            arm(PREAD, nth, errors[i]);
            int r = gpupool_upload_file(client, 0, device.data, fd, offset, size, NULL);
            failed = disarm();
            if (failed && errors[i] == EIO) {
                uint64_t at = UINT64_MAX;
                assert_int_equal(r, GPUPOOL_E_DRIVER);
                const char *text = strstr(gpupool_error_text(), "at offset ");
                assert_non_null(text);
                assert_int_equal(sscanf(text, "at offset %" SCNu64 ": EIO", &at), 1);
                assert_int_equal((at - offset) % CHUNK, 0);
            } else {
                MUST(r);
                expect_part(client, device.data, offset, size, 5);
            }
            expect_no_blocks(client);
            assert_true(stream_heaps_are_valid(client));
        }
        assert_true(nth > size / CHUNK);
    }
    MUST(gpupool_release(client, &device, NULL));
    close_cached(client);
}

static void a_read_that_fails_waits_for_those_under_way(void **state) {
    const uint64_t size = 9 * CHUNK;
    struct gpupool_client *client;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(3, 0);
    _cleanup_(close_fdp) int fd = make_file(size, 5);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, NULL);
    slow.caller = pthread_self();
    atomic_store(&slow.is_armed, true);
    int r = gpupool_upload_file(client, 0, device.data, fd, 0, size, NULL);
    const unsigned under_way = atomic_load(&slow.under_way);
    atomic_store(&slow.has_returned, true);
    WAIT_UNTIL(atomic_load(&slow.under_way) == 0);
    atomic_store(&slow.is_armed, false);
    assert_true(disarm());
    assert_int_equal(under_way, 0);
    MUST_BE(r, GPUPOOL_E_DRIVER);
    MUST(gpupool_upload_file(client, 0, device.data, fd, 0, size, NULL));
    expect_part(client, device.data, 0, size, 5);
    MUST(gpupool_release(client, &device, NULL));
    expect_no_blocks(client);
    close_cached(client);
}

/* Without room for what it has to note down an upload waits, or is refused; and leaves nothing. */
static void any_allocation_that_fails_leaves_no_block(void **state) {
    const uint64_t size = 9 * CHUNK + 1;
    unsigned nth = 1;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    if (!test_is_simulated())
        skip();
    _cleanup_(freep) char *memory = need_memory(size);
    for (bool failed = true; failed; nth++) {
        struct gpupool_client *client = open_staging(3, 0);
        struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, NULL);
        fill(memory, size, nth);
        MUST(gpupool_set(client, 0, device.data, 0, size, NULL));
        arm(CALLOC, nth, ENOMEM);
        int r = gpupool_upload(client, 0, device.data, memory, size, NULL);
        failed = disarm();
        if (r < 0)
            assert_true(failed && (r == GPUPOOL_E_NO_MEMORY || r == GPUPOOL_E_DRIVER));
        else
            expect_on_device(client, device.data, size, nth, NULL);
        expect_no_blocks(client);
        assert_true(stream_heaps_are_valid(client));
        MUST(gpupool_release(client, &device, NULL));
        close_cached(client);
    }
    print_message("%u rounds\n", nth - 1);
    assert_true(nth > 5);
}

static void any_read_of_a_pipe_that_fails_is_said(void **state) {
    const int errors[] = {EIO, EINTR, EAGAIN, 0};
    struct gpupool_client *client;
    char memory[CHUNK];
    int fds[2];

    (void)state;
    SKIP_WITHOUT_DEVICE();
    client = open_staging(3, 0);
    struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, CHUNK, NULL);
    fill(memory, CHUNK, 2);
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++) {
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        write_all(fds[1], memory, CHUNK); /* as much as a pipe has room for */
        arm(READ, 1, errors[i]);
        MUST_BE(gpupool_upload_file(client, 0, device.data, fds[0], 0, CHUNK, NULL),
                errors[i] == EIO ? GPUPOOL_E_DRIVER : 0);
        assert_true(disarm());
        if (errors[i] != EIO)
            expect_part(client, device.data, 0, CHUNK, 2);
        expect_no_blocks(client);
        close_fd(fds[0]);
        close_fd(fds[1]);
    }
    MUST(gpupool_release(client, &device, NULL));
    close_cached(client);
}

static void where_threads_cannot_be_started_fewer_copy(void **state) {
    const uint64_t size = 20 * CHUNK;
    unsigned nth = 1;

    (void)state;
    SKIP_WITHOUT_DEVICE();
    _cleanup_(freep) char *memory = need_memory(size);
    fill(memory, size, 3);
    for (bool failed = true; failed; nth++) {
        struct gpupool_client *client = open_staging(4, 0);
        struct gpupool_buffer device = acquire(client, GPUPOOL_POOL_DEVICE, size, NULL);
        MUST(gpupool_set(client, 0, device.data, 0, size, NULL)); /* the simulated stream is there */
        arm(PTHREAD_CREATE, nth, EAGAIN);
        MUST(gpupool_upload(client, 0, device.data, memory, size, NULL));
        failed = disarm();
        expect_on_device(client, device.data, size, 3, NULL);
        assert_int_equal(copy_workers_started(client), failed ? nth - 1 : 3);
        MUST(gpupool_upload(client, 0, device.data, memory, size, NULL)); /* tries again */
        assert_int_equal(copy_workers_started(client), 3);
        MUST(gpupool_release(client, &device, NULL));
        expect_no_blocks(client);
        close_cached(client);
    }
    assert_int_equal(nth, 5);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_part_of_a_file_arrives),
        cmocka_unit_test(what_has_no_offsets_is_read_in_order),
        cmocka_unit_test(signals_do_not_cut_a_file_short),
        cmocka_unit_test(a_file_that_ends_early_is_said_with_the_place),
        cmocka_unit_test(what_cannot_be_read_is_said_with_its_error),
        cmocka_unit_test(any_read_that_fails_is_said_and_leaves_no_block),
        cmocka_unit_test(a_read_that_fails_waits_for_those_under_way),
        cmocka_unit_test(any_allocation_that_fails_leaves_no_block),
        cmocka_unit_test(any_read_of_a_pipe_that_fails_is_said),
        cmocka_unit_test(where_threads_cannot_be_started_fewer_copy),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
