/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the C library that the client makes and that block, tell the time or cross the process's
 * border, by the linker's --wrap. In the simulator's own work they are the C library's.
 *
 * A lock that is held makes the thread hand the baton on until it is free. A wait for a condition ends with
 * a signal, which wakes one of the waiting threads by lot, and now and then without.
 */
#include "tests/joint/wrapped.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "tests/joint/world.h"

#define CLOCK_READ_NS 30u
#define KEYS_MAX      8u
#define WAITERS_MAX   64u
#define SPURIOUS      64u /* one in so many looks at a condition ends the wait */
#define RECEIVE_NS    NS_PER_S /* that a blocking receive of the client waits: SO_RCVTIMEO */

extern char __data_start, _end;

static bool is_static(const pthread_mutex_t *lock) {
    return (const char *)lock >= &__data_start && (const char *)lock < &_end;
}

/* --- locks --- */

static bool lock_is_free(void *argument) {
    pthread_mutex_t *lock = argument;
    if (__real_pthread_mutex_trylock(lock) != 0)
        return false;
    __real_pthread_mutex_unlock(lock);
    return true;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock) {
    if (!baton_is_on())
        return __real_pthread_mutex_lock(lock);
    baton_may_pass();
    while (__real_pthread_mutex_trylock(lock) != 0)
        baton_wait(lock_is_free, lock, NS_FOREVER);
    baton_count_locks(1);
    if (is_static(lock))
        baton_count_static_locks(1);
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *lock) {
    if (!baton_is_on())
        return __real_pthread_mutex_trylock(lock);
    baton_may_pass();
    int r = __real_pthread_mutex_trylock(lock);
    if (r == 0)
        baton_count_locks(1);
    if (r == 0 && is_static(lock))
        baton_count_static_locks(1);
    if (r != 0)
        baton_pass();
    return r;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock) {
    int r = __real_pthread_mutex_unlock(lock);
    if (!baton_is_on())
        return r;
    baton_count_locks(-1);
    if (is_static(lock))
        baton_count_static_locks(-1);
    baton_may_pass();
    return r;
}

static bool can_read(void *argument) {
    pthread_rwlock_t *lock = argument;
    if (pthread_rwlock_tryrdlock(lock) != 0)
        return false;
    pthread_rwlock_unlock(lock);
    return true;
}

int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *lock) {
    while (pthread_rwlock_tryrdlock(lock) != 0)
        baton_wait(can_read, lock, NS_FOREVER);
    return 0;
}

/* --- conditions --- */

struct waiter {
    pthread_cond_t *condition;
    bool is_woken;
};

static struct waiter *waiters[WAITERS_MAX];
static unsigned n_waiters;

static bool is_woken(void *argument) {
    const struct waiter *waiter = argument;
    return waiter->is_woken || one_in(SPURIOUS);
}

static int wait_for(pthread_cond_t *condition, pthread_mutex_t *lock, uint64_t deadline_ns) {
    struct waiter waiter = {condition, false};

    must(n_waiters < WAITERS_MAX, "the simulator has no room for a waiting thread");
    waiters[n_waiters++] = &waiter;
    __wrap_pthread_mutex_unlock(lock);
    bool in_time = baton_wait(is_woken, &waiter, deadline_ns);
    unsigned i = 0;
    while (waiters[i] != &waiter)
        i++;
    waiters[i] = waiters[--n_waiters];
    __wrap_pthread_mutex_lock(lock);
    return in_time ? 0 : ETIMEDOUT;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *lock) {
    return wait_for(condition, lock, NS_FOREVER);
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *deadline) {
    return wait_for(condition, lock,
                    (uint64_t)deadline->tv_sec * NS_PER_S + (uint64_t)deadline->tv_nsec);
}

int __wrap_pthread_cond_signal(pthread_cond_t *condition) {
    unsigned start = n_waiters > 0 ? (unsigned)random_below(n_waiters) : 0;

    for (unsigned i = 0; i < n_waiters; i++) {
        struct waiter *waiter = waiters[(start + i) % n_waiters];
        if (waiter->condition == condition && !waiter->is_woken) {
            waiter->is_woken = true;
            break;
        }
    }
    baton_may_pass();
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition) {
    for (unsigned i = 0; i < n_waiters; i++)
        if (waiters[i]->condition == condition)
            waiters[i]->is_woken = true;
    baton_may_pass();
    return 0;
}

/* --- threads --- */

static struct key {
    pthread_key_t key;
    void (*end)(void *value);
} keys[KEYS_MAX];
static unsigned n_keys;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
                          void *argument) {
    if (!baton_is_on())
        return __real_pthread_create(thread, attributes, main, argument);
    if (memory_fails())
        return EAGAIN;
    int r = baton_create(thread, main, argument);
    baton_may_pass();
    return r;
}

int __wrap_pthread_join(pthread_t thread, void **ret_value) {
    if (!baton_is_on())
        return __real_pthread_join(thread, ret_value);
    baton_join(thread);
    return 0;
}

int __wrap_pthread_key_create(pthread_key_t *key, void (*end)(void *)) {
    int r = __real_pthread_key_create(key, NULL);
    if (r == 0 && end != NULL && n_keys < KEYS_MAX)
        keys[n_keys++] = (struct key){*key, end};
    return r;
}

void wrapped_run_destructors(void) {
    for (unsigned i = 0; i < n_keys; i++) {
        void *value = pthread_getspecific(keys[i].key);
        if (value == NULL)
            continue;
        pthread_setspecific(keys[i].key, NULL);
        keys[i].end(value);
    }
}

int __wrap_sched_yield(void) {
    if (baton_is_on())
        baton_pass();
    return 0;
}

/* --- time --- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time) {
    if (clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, ret_time);
    if (baton_is_on())
        world.now_ns += CLOCK_READ_NS;
    *ret_time = (struct timespec){(time_t)(world.now_ns / NS_PER_S), (long)(world.now_ns % NS_PER_S)};
    return 0;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *ret_left) {
    (void)ret_left;
    if (!baton_is_on())
        return __real_nanosleep(time, ret_left);
    baton_nap(world.now_ns + (uint64_t)time->tv_sec * NS_PER_S + (uint64_t)time->tv_nsec);
    return 0;
}

/* A timer is an eventfd, which the scheduler writes. */
int __wrap_timerfd_create(int clock, int flags) {
    (void)clock, (void)flags;
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *time, struct itimerspec *ret_old) {
    uint64_t first_ns = (uint64_t)time->it_value.tv_sec * NS_PER_S + (uint64_t)time->it_value.tv_nsec,
             one = 1;

    (void)flags, (void)ret_old;
    if (first_ns <= 1) {
        (void)!__real_write(fd, &one, sizeof one);
        return 0;
    }
    baton_set_timer(fd, world.now_ns + first_ns,
                    (uint64_t)time->it_interval.tv_sec * NS_PER_S + (uint64_t)time->it_interval.tv_nsec);
    return 0;
}

/* --- descriptors --- */

struct polling {
    struct pollfd *fds;
    nfds_t count;
};

/* As poll() with timeout 0: a socket that is full or late is not ready. */
static int poll_now(struct pollfd *fds, nfds_t count) {
    int n = __real_poll(fds, count, 0);

    for (nfds_t i = 0; n > 0 && i < count; i++) {
        if (fds[i].fd < 0 || fds[i].revents == 0 || (fds[i].revents & (POLLHUP | POLLERR)) != 0)
            continue;
        if ((fds[i].revents & POLLOUT) != 0 && wires_is_full(fds[i].fd))
            fds[i].revents &= (short)~POLLOUT;
        if ((fds[i].revents & POLLIN) != 0 && wires_is_late(fds[i].fd))
            fds[i].revents &= (short)~POLLIN;
        n -= fds[i].revents == 0;
    }
    return n;
}

static bool is_any_ready(void *argument) {
    const struct polling *polling = argument;
    return poll_now(polling->fds, polling->count) > 0;
}

static int poll_until(struct pollfd *fds, nfds_t count, uint64_t deadline_ns) {
    struct polling polling = {fds, count};

    baton_may_pass();
    int n = poll_now(fds, count);
    if (n != 0 || deadline_ns == 0)
        return n;
    baton_wait(is_any_ready, &polling, deadline_ns);
    return poll_now(fds, count);
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    if (!baton_is_on())
        return __real_poll(fds, count, timeout_ms);
    return poll_until(fds, count,
                      timeout_ms < 0    ? NS_FOREVER
                      : timeout_ms == 0 ? 0
                                        : world.now_ns + (uint64_t)timeout_ms * NS_PER_MS);
}

int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const void *signals) {
    (void)signals;
    uint64_t timeout_ns =
        timeout == NULL ? NS_FOREVER : (uint64_t)timeout->tv_sec * NS_PER_S + (uint64_t)timeout->tv_nsec;
    return poll_until(fds, count, timeout_ns == 0 ? 0 : clock_deadline_ns(world.now_ns, timeout_ns));
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags) {
    if (!baton_is_on()) {
        if (!world.is_calm && one_in(world.full_sockets)) { /* the daemon's end */
            errno = EAGAIN;
            return -1;
        }
        return __real_sendmsg(fd, message, flags);
    }
    baton_may_pass();
    wires_note_use(fd);
    if (wires_is_full(fd)) {
        errno = EAGAIN;
        return -1;
    }
    ssize_t n = __real_sendmsg(fd, message, flags);
    int error = errno;
    baton_may_pass();
    errno = error;
    return n;
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    struct polling polling = {&ready, 1};

    if (!baton_is_on())
        return __real_recvmsg(fd, message, flags);
    baton_may_pass();
    wires_note_use(fd);
    if (!is_any_ready(&polling) &&
        ((flags & MSG_DONTWAIT) != 0 || !baton_wait(is_any_ready, &polling, world.now_ns + RECEIVE_NS))) {
        errno = EAGAIN;
        return -1;
    }
    return __real_recvmsg(fd, message, flags | MSG_DONTWAIT);
}

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t size) {
    if (!baton_is_on())
        return __real_connect(fd, address, size);
    wires_connect(fd);
    baton_may_pass();
    return 0;
}

int __wrap_close(int fd) {
    baton_drop_timer(fd);
    if (baton_is_on())
        wires_forget(fd);
    return __real_close(fd);
}

ssize_t __wrap_write(int fd, const void *bytes, size_t size) {
    ssize_t n = __real_write(fd, bytes, size);
    if (baton_is_on())
        baton_may_pass();
    return n;
}

ssize_t __wrap_getrandom(void *bytes, size_t size, unsigned flags) {
    (void)flags;
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)bytes)[i] = (uint8_t)(random_next(&world.random_state) >> 32);
    return (ssize_t)size;
}

/* --- mappings: of host memory --- */

void *__wrap_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    if (memory_fails())
        return MAP_FAILED;
    void *memory = __real_mmap(address, size, protection, flags, fd, offset);
    struct stat status;

    if (!baton_is_on() || memory == MAP_FAILED || fd < 0 || fstat(fd, &status) < 0)
        return memory;
    int segment = daemon_find_inode(status.st_ino);
    if (segment >= 0)
        gpu_map(memory, size, (unsigned)segment);
    return memory;
}

int __wrap_munmap(void *address, size_t size) {
    if (baton_is_on()) {
        gpu_unmap(address, size, false);
        gpu_check_words(address, size);
    }
    return __real_munmap(address, size);
}

/* --- others --- */

long __wrap_syscall(long number, ...) {
    long arguments[6];
    va_list list;

    va_start(list, number);
    for (unsigned i = 0; i < 6; i++)
        arguments[i] = va_arg(list, long);
    va_end(list);
    if (number != SYS_membarrier)
        return __real_syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                              arguments[5]);
    if (arguments[0] == MEMBARRIER_CMD_QUERY)
        return MEMBARRIER_CMD_PRIVATE_EXPEDITED | MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    if (arguments[0] == MEMBARRIER_CMD_PRIVATE_EXPEDITED && baton_is_on())
        baton_may_pass(); /* not while a thread registers: the C library's pthread_once() is held then */
    return 0;
}

/* --- of the library --- */

enum acquire_state __wrap_acquire_next(enum acquire_state state, enum acquire_event event) {
    must(acquire_may(state, event), "an acquire knows each event that it meets");
    world.tally->events[state][event]++;
    return __real_acquire_next(state, event);
}
