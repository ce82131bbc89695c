/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_JOINT_WRAPPED_H
#define TESTS_JOINT_WRAPPED_H
/* The calls of the C library as they are without the simulator. */
#include "client/core/acquire.h"
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *),
                          void *argument);
int __real_pthread_join(pthread_t thread, void **ret_value);
int __real_pthread_detach(pthread_t thread);
int __real_pthread_mutex_lock(pthread_mutex_t *lock);
int __real_pthread_mutex_trylock(pthread_mutex_t *lock);
int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __real_pthread_key_create(pthread_key_t *key, void (*end)(void *));
enum acquire_state __real_acquire_next(enum acquire_state state, enum acquire_event event);
int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __real_close(int fd);
int __real_connect(int fd, const struct sockaddr *address, socklen_t size);
int __real_nanosleep(const struct timespec *time, struct timespec *ret_left);
int __real_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __real_timerfd_create(int clock, int flags);
int __real_munmap(void *address, size_t size);
long __real_syscall(long number, ...);
ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __real_getrandom(void *bytes, size_t size, unsigned flags);
void *__real_mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset);

/* Ends the running thread's values of keys, as the C library does after the thread's last statement. */
void wrapped_run_destructors(void);

#endif
