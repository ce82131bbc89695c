/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th failure loop over the client library: a client's whole life runs with the first call of the system
 * or the driver failing, then with the second, and so on, until nothing failed. Whatever fails, the calls
 * that fail say so with a text, the outputs of failed calls are untouched, and afterwards no descriptor,
 * mapping or lease is left (heap memory is for the leak sanitizer to see).
 *
 * The linker puts the functions below in the place of the library's system calls. Only the test's own thread
 * is made to fail: the false daemon runs in the same process, and the simulated GPU's calls on this thread
 * fail as well.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "gpu/sim/sim.h"
#include "tests/unit/client_fixture.h"

struct fault {
    bool armed;
    bool gentle; /* failures that are none: EINTR, EAGAIN, a lost allocation of nothing */
    unsigned at, seen;
    int64_t mapped_bytes; /* by mmap less munmap */
    unsigned connected;
    uint64_t daemon_fds; /* a bit for each descriptor that is a connection to the daemon */
};

static _Thread_local struct fault fault;

static bool hit(int error) {
    if (!fault.armed || ++fault.seen != fault.at)
        return false;
    errno = error;
    return true;
}

/* For calls that gentle failures leave alone. */
static bool hit_hard(int error) {
    return !fault.gentle && hit(error);
}

#define WRAP(type, name, parameters, arguments, is_hit, failure)                                             \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters {                                                                          \
        return (is_hit) ? (failure) : __real_##name arguments;                                               \
    }

WRAP(int, socket, (int domain, int type, int protocol), (domain, type, protocol), hit_hard(EMFILE), -1)
WRAP(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t size),
     (fd, level, name, value, size), hit_hard(ENOMEM), -1)
/* The simulated driver takes an interruption for a failure: its sockets are left alone by gentle failures. */
static bool hit_packet(int fd, int gentle_error, int error) {
    if (!fault.gentle)
        return hit(error);
    return (fault.daemon_fds >> fd & 1) != 0 && hit(gentle_error);
}

WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags),
     hit_packet(fd, fault.at % 2 == 0 ? EINTR : EAGAIN, ENOBUFS), -1)
WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags),
     hit_packet(fd,
                fault.at % 3 == 0   ? EINTR
                : fault.at % 3 == 1 ? EAGAIN
                                    : ECONNRESET,
                ENOMEM),
     -1)
WRAP(int, ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask),
     (fds, count, timeout, mask), hit(fault.gentle ? EINTR : ENOMEM), -1)
WRAP(int, madvise, (void *memory, size_t size, int advice), (memory, size, advice), hit_hard(ENOMEM), -1)
WRAP(int, fstat, (int fd, struct stat *status), (fd, status), hit_hard(ENOMEM), -1)
WRAP(void *, malloc, (size_t size), (size), hit_hard(ENOMEM), NULL)
WRAP(void *, calloc, (size_t count, size_t size), (count, size), hit_hard(ENOMEM), NULL)
WRAP(char *, strdup, (const char *text), (text), hit_hard(ENOMEM), NULL)

int __real_connect(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size) {
    /* The simulated driver's own connections go to abstract names. */
    bool to_daemon = ((const struct sockaddr_un *)(const void *)address)->sun_path[0] == '/';
    if (to_daemon ? hit(fault.gentle ? EINTR : ECONNREFUSED) : hit_hard(ECONNREFUSED))
        return -1;
    int r = __real_connect(fd, address, size);
    fault.daemon_fds &= ~(UINT64_C(1) << fd);
    if (r == 0 && to_daemon) {
        fault.connected++;
        fault.daemon_fds |= UINT64_C(1) << fd;
    }
    return r;
}

int __real_fcntl(int fd, int command, long argument);
int __wrap_fcntl(int fd, int command, long argument);
int __wrap_fcntl(int fd, int command, long argument) {
    return hit_hard(EINVAL) ? -1 : __real_fcntl(fd, command, argument);
}

void *__real_mmap(void *hint, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *hint, size_t size, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap(void *hint, size_t size, int protection, int flags, int fd, off_t offset) {
    if (hit_hard(ENOMEM))
        return MAP_FAILED;
    void *memory = __real_mmap(hint, size, protection, flags, fd, offset);
    if (memory != MAP_FAILED && (flags & MAP_FIXED) == 0) /* that takes the place of what is mapped */
        fault.mapped_bytes += (int64_t)size;
    return memory;
}

int __real_munmap(void *memory, size_t size);
int __wrap_munmap(void *memory, size_t size);
int __wrap_munmap(void *memory, size_t size) {
    fault.mapped_bytes -= (int64_t)size;
    return __real_munmap(memory, size);
}

static struct false_daemon *served;

/* Looks at a call's result, after the call: a failure has a text, and left its output as it was. Returns
 * whether the call failed. */
static bool call_failed(int r, bool untouched) {
    if (r == 0)
        return false;
    assert_true(r < 0);
    assert_true(strlen(gpupool_error_text()) > 0);
    assert_true(untouched);
    return true;
}
#define FAILED(call, untouched)                                                                              \
    __extension__({                                                                                          \
        int r_ = (call);                                                                                     \
        call_failed(r_, (untouched));                                                                        \
    })

/* A life: two clients, all kinds of calls. Goes on after failures as far as it can. Returns how many calls
 * failed. */
static unsigned live(struct gpupool_client **ret_client, struct gpupool_client **ret_other) {
    struct gpupool_options options = options_for(served->path);
    struct gpupool_client *client = NULL, *other = NULL;
    struct gpupool_buffer host = {0}, device = {0}, attached = {0};
    struct gpupool_token token = {0};
    unsigned failures = 0;
    uint32_t pool = 0;
    size_t count = 99;

    if (FAILED(gpupool_open(&options, &client), client == NULL))
        return 1;
    *ret_client = client;
    failures += FAILED(gpupool_pools(client, NULL, 0, &count), count == 99);
    failures += FAILED(gpupool_device_pool(client, 0, &pool), pool == 0);
    failures +=
        FAILED(gpupool_acquire(client, FALSE_POOL_DEVICE, 5000, NULL, GPUPOOL_FOREVER, GPUPOOL_ZERO, &device),
               device.data == NULL);
    failures +=
        FAILED(gpupool_acquire(client, FALSE_POOL_HOST, 5000, NULL, GPUPOOL_FOREVER, GPUPOOL_ZERO, &host),
               host.data == NULL);
    failures += FAILED(gpupool_open(&options, &other), other == NULL);
    *ret_other = other;
    if (host.data != NULL) {
        bool shared = !FAILED(gpupool_share(client, &host, GPUPOOL_NO_STREAM, &token), token.bytes[0] == 0);
        failures += !shared;
        if (shared && other != NULL)
            failures +=
                FAILED(gpupool_attach(other, &token, GPUPOOL_NO_STREAM, 0, &attached), attached.data == NULL);
        failures += FAILED(gpupool_release(client, &host, NULL), host.data != NULL);
    }
    if (attached.data != NULL) {
        memset(attached.data, 3, attached.size_bytes);
        failures += FAILED(gpupool_release(other, &attached, NULL), attached.data != NULL);
    }
    if (device.data != NULL)
        failures += FAILED(gpupool_release(client, &device, NULL), device.data != NULL);
    return failures;
}

/* Closes the device segment once more than it is opened: for the close that was made to fail. */
static void close_kept_handle(void) {
    const struct gpu *gpu;
    void *memory;

    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    assert_int_equal(gpu_sim(&(struct gpu_sim_options){0}, &gpu), 0);
    assert_int_equal(gpu->ipc_open(0, &exporter.handle, &memory), 0);
    assert_int_equal(gpu->ipc_close(0, memory), 0);
    assert_int_equal(gpu->ipc_close(0, memory), 0);
}

/* Returns whether the planned failure of a driver call has happened. */
static bool live_and_leave_nothing(unsigned n, bool driver_fails, unsigned *ret_failures) {
    struct gpupool_client *client = NULL, *other = NULL;
    int before = open_fds();
    int64_t mapped_bytes = fault.mapped_bytes;

    unsigned ended = served->ended, byes = served->byes;
    fault.connected = 0;
    *ret_failures = live(&client, &other);
    unsigned opened = (client != NULL) + (other != NULL);
    gpupool_close(other);
    gpupool_close(client);
    fault.armed = false;
    bool failed = gpu_sim_failed();
    false_daemon_await(served, &served->ended, ended + fault.connected);
    assert_int_equal(served->leases, 0);
    /* Memory that the driver does not unmap stays open. Then the client sends no farewell. */
    bool kept = driver_fails && served->byes - byes < opened;
    if (open_fds() != before && kept)
        close_kept_handle();
    if (open_fds() != before)
        fail_msg("failure %u: %d descriptors before, %d after", n, before, open_fds());
    if (fault.mapped_bytes != mapped_bytes && !kept)
        fail_msg("failure %u: %" PRId64 " bytes of mappings are left", n, fault.mapped_bytes - mapped_bytes);
    return failed;
}

/* More calls than a life makes; a loop that comes here counts something that does not end. */
#define CALLS_MAX 2000u

static unsigned for_each_system_call(bool gentle, unsigned *ret_failures) {
    struct gpupool_client *client = start(NULL); /* what is set up once in a process */
    struct gpupool_buffer buffer;
    unsigned failures, n;

    served = &daemon_;
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 1, NULL, GPUPOOL_NOW, 0, &buffer));
    gpupool_close(client);
    false_daemon_await(&daemon_, &daemon_.ended, 1);
    *ret_failures = 0;
    for (n = 1;; n++) {
        assert_true(n < CALLS_MAX);
        fault.armed = true;
        fault.gentle = gentle;
        fault.at = n;
        fault.seen = 0;
        live_and_leave_nothing(n, false, &failures);
        if (fault.seen < n)
            break;
        *ret_failures += failures;
    }
    assert_int_equal(failures, 0); /* the last round, in which nothing was made to fail */
    return n - 1;
}

static void failing_system_calls_leave_nothing(void **state) {
    (void)state;
    unsigned failures;
    unsigned calls = for_each_system_call(false, &failures);
    assert_true(calls > 40);    /* connecting, sending, receiving, mapping, allocating */
    assert_true(failures > 30); /* most of them matter; hints and fallbacks do not */
}

static void interrupted_system_calls_are_made_again(void **state) {
    (void)state;
    unsigned failures;
    unsigned calls = for_each_system_call(true, &failures);
    assert_true(calls > 25); /* connects, packets out and in */
    assert_int_equal(failures, 0);
}

static void failing_driver_calls_leave_nothing(void **state) {
    (void)state;
    unsigned total = 0, failures, n;

    served = &daemon_;
    false_daemon_run(&daemon_);
    for (n = 1;; n++) {
        assert_true(n < CALLS_MAX);
        assert_int_equal(gpu_sim_fail("any", n, GPU_ERROR_UNKNOWN), 0);
        if (!live_and_leave_nothing(n, true, &failures))
            break;
        total += failures;
    }
    assert_int_equal(failures, 0);
    assert_true(n > 15); /* listing devices, opening, registering, zeroing, waiting, closing */
    assert_true(total > 10);
}

int main(void) {
    fixture_init();
    const struct CMUnitTest tests[] = {
        TEST(failing_system_calls_leave_nothing),
        TEST(interrupted_system_calls_are_made_again),
        TEST(failing_driver_calls_leave_nothing),
    };
    int failed = cmocka_run_group_tests_name("client_faults", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
