/* SPDX-License-Identifier: Apache-2.0 */
/* The library that makes calls fail; see call_faults.h. */
#include "tests/integration/call_faults.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* glibc's own, which its malloc() and its like are other names of: to be had without asking dlsym(), which
 * allocates itself. */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);

static struct call_faults *faults;
static int spare_fd = -1;
static uintptr_t program_begin, program_end;

static int find_program(struct dl_phdr_info *info, size_t size, void *user) {
    (void)size, (void)user;
    /* The first object is the program. */
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        uintptr_t begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        uintptr_t end = begin + info->dlpi_phdr[i].p_memsz;
        program_begin = program_begin == 0 || begin < program_begin ? begin : program_begin;
        program_end = end > program_end ? end : program_end;
    }
    return 1;
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("GPUPOOL_TEST_FAULTS"), *spare = getenv("GPUPOOL_TEST_FAULTS_SPARE");
    int fd = path != NULL ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;

    dl_iterate_phdr(find_program, NULL);
    if (spare != NULL)
        spare_fd = atoi(spare);
    if (fd < 0)
        return;
    void *memory = (void *)syscall(SYS_mmap, NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (memory != MAP_FAILED)
        faults = memory;
}

/* Whether this call is to fail; errno says with what. */
static bool fails(enum call_kind kind, const void *caller) {
    if (faults == NULL || atomic_load_explicit(&faults->kind, memory_order_acquire) != (uint32_t)kind)
        return false;
    bool of_program = (uintptr_t)caller >= program_begin && (uintptr_t)caller < program_end;
    if (!of_program && kind != CALL_EPOLL_CREATE1 && kind != CALL_EVENTFD)
        return false;
    uint32_t seen = 1 + atomic_fetch_add(&faults->seen, 1), every = atomic_load(&faults->every);
    if (seen != atomic_load(&faults->nth) && (every == 0 || seen % every != 0))
        return false;
    atomic_fetch_add(&faults->hits, 1);
    errno = atomic_load(&faults->error);
    return true;
}

#define CALLER() __builtin_return_address(0)

/* The function that this one stands before. */
#define NEXT(name, ...)                                                                                      \
    ({                                                                                                       \
        static __typeof__(name) *next_;                                                                      \
        if (next_ == NULL)                                                                                   \
            next_ = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);                                             \
        next_(__VA_ARGS__);                                                                                  \
    })

#define WRAP(kind, result, name, declared, ...)                                                              \
    result name declared;                                                                                    \
    result name declared {                                                                                   \
        return fails(CALL_##kind, CALLER()) ? (result)-1 : NEXT(name, __VA_ARGS__);                          \
    }
#define WRAP_FD(kind, result, name, declared, ...)                                                           \
    result name declared;                                                                                    \
    result name declared {                                                                                   \
        return fd != spare_fd && fails(CALL_##kind, CALLER()) ? (result)-1 : NEXT(name, __VA_ARGS__);        \
    }

void *malloc(size_t size) {
    return fails(CALL_MALLOC, CALLER()) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return fails(CALL_CALLOC, CALLER()) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
    return fails(CALL_REALLOC, CALLER()) ? NULL : __libc_realloc(memory, size);
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    return fails(CALL_MMAP, CALLER()) ? MAP_FAILED : NEXT(mmap, address, size, protection, flags, fd, offset);
}

WRAP(ACCEPT4, int, accept4, (int fd, struct sockaddr *address, socklen_t *size, int flags), fd, address, size,
     flags)
WRAP(CONNECT, int, connect, (int fd, const struct sockaddr *address, socklen_t size), fd, address, size)
WRAP(EPOLL_CREATE1, int, epoll_create1, (int flags), flags)
WRAP(EVENTFD, int, eventfd, (unsigned count, int flags), count, flags)
WRAP(FSTAT, int, fstat, (int fd, struct stat *status), fd, status)
WRAP(FTRUNCATE, int, ftruncate, (int fd, off_t size), fd, size)
WRAP(GETRANDOM, ssize_t, getrandom, (void *buffer, size_t size, unsigned flags), buffer, size, flags)
WRAP(GETSOCKOPT, int, getsockopt, (int fd, int level, int name, void *value, socklen_t *size), fd, level,
     name, value, size)
WRAP(LISTEN, int, listen, (int fd, int backlog), fd, backlog)
WRAP(MADVISE, int, madvise, (void *memory, size_t size, int advice), memory, size, advice)
WRAP(MEMFD_CREATE, int, memfd_create, (const char *name, unsigned flags), name, flags)
WRAP(POLL, int, poll, (struct pollfd * fds, nfds_t count, int timeout), fds, count, timeout)
WRAP(POLL, int, ppoll,
     (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask), fds, count,
     timeout, mask)
WRAP_FD(READ, ssize_t, read, (int fd, void *buffer, size_t size), fd, buffer, size)
WRAP_FD(RECV, ssize_t, recv, (int fd, void *buffer, size_t size, int flags), fd, buffer, size, flags)
WRAP_FD(RECVMSG, ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), fd, message, flags)
WRAP_FD(SEND, ssize_t, send, (int fd, const void *buffer, size_t size, int flags), fd, buffer, size, flags)
WRAP_FD(SENDMSG, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), fd, message, flags)
WRAP(SETSOCKOPT, int, setsockopt, (int fd, int level, int name, const void *value, socklen_t size), fd, level,
     name, value, size)
WRAP(SOCKET, int, socket, (int domain, int type, int protocol), domain, type, protocol)
WRAP(TIMERFD_CREATE, int, timerfd_create, (int clock, int flags), clock, flags)

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
    return fails(CALL_PTHREAD_CREATE, CALLER()) ? errno
                                                : NEXT(pthread_create, thread, attributes, run, argument);
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    mode_t mode = 0;
    if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return fails(CALL_OPEN, CALLER()) ? -1 : NEXT(open, path, flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
    return fails(CALL_OPEN, CALLER()) ? NULL : NEXT(fopen, path, mode);
}

int fcntl(int fd, int command, ...) {
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    return fails(CALL_FCNTL, CALLER()) ? -1 : NEXT(fcntl, fd, command, argument);
}
