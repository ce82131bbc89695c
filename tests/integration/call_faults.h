/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_CALL_FAULTS_H
#define TESTS_INTEGRATION_CALL_FAULTS_H
/*
 * Calls of the C library that fail when a test wants them to, in another process. call_faults.c is a library
 * that the dynamic linker loads ahead of all others (LD_PRELOAD); test and process share a file that says
 * which call is to fail. Only calls of the program itself fail, and those by which libuv makes its
 * descriptors: libuv ends the process where it has no memory of its own, which the daemon cannot prevent.
 *
 * The file's path is $GPUPOOL_TEST_FAULTS; calls on the descriptor $GPUPOOL_TEST_FAULTS_SPARE never fail.
 */
#include <stdatomic.h>
#include <stdint.h>

#define CALL_KINDS(X)                                                                                        \
    X(ACCEPT4)                                                                                               \
    X(CALLOC)                                                                                                \
    X(CONNECT)                                                                                               \
    X(EPOLL_CREATE1)                                                                                         \
    X(EVENTFD)                                                                                               \
    X(FCNTL)                                                                                                 \
    X(FSTAT)                                                                                                 \
    X(FTRUNCATE)                                                                                             \
    X(GETRANDOM)                                                                                             \
    X(GETSOCKOPT)                                                                                            \
    X(LISTEN)                                                                                                \
    X(MADVISE)                                                                                               \
    X(MALLOC)                                                                                                \
    X(MEMFD_CREATE)                                                                                          \
    X(MMAP)                                                                                                  \
    X(OPEN)                                                                                                  \
    X(POLL)                                                                                                  \
    X(PTHREAD_CREATE)                                                                                        \
    X(READ)                                                                                                  \
    X(REALLOC)                                                                                               \
    X(RECV)                                                                                                  \
    X(RECVMSG)                                                                                               \
    X(SEND)                                                                                                  \
    X(SENDMSG)                                                                                               \
    X(SETSOCKOPT)                                                                                            \
    X(SOCKET)                                                                                                \
    X(TIMERFD_CREATE)

#define CALL_KIND(name) CALL_##name,
enum call_kind {
    CALL_NONE,
    CALL_KINDS(CALL_KIND) CALL_ANY
};

/* Shared memory. A call of the kind counts seen; it fails when seen reaches nth, and with every > 0 also each
 * time that seen is a multiple of every. */
struct call_faults {
    _Atomic uint32_t kind; /* CALL_NONE: nothing fails */
    _Atomic int32_t error; /* errno */
    _Atomic uint32_t nth, every;
    _Atomic uint32_t seen, hits;
};

#endif
