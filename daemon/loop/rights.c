/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/rights.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "daemon/loop/closer.h"

/* Of a packet, so many bytes are copied to know what comes along. */
#define LOOK_BYTES 4096u

static atomic_bool some_arrive; /* on some socket, or may */

static bool refuse(int fd) {
    int off = 0;
    return setsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &off, sizeof off) == 0;
}

void rights_refuse(int listener_fd) {
    if (!refuse(listener_fd))
        atomic_store(&some_arrive, true);
}

void rights_accepted(int fd) {
    int passes = 0;
    socklen_t size = sizeof passes;

    if (getsockopt(fd, SOL_SOCKET, SO_PASSRIGHTS, &passes, &size) == 0 && passes) {
        atomic_store(&some_arrive, true);
        (void)refuse(fd);
    }
}

ssize_t rights_look(int fd, size_t most) {
    char bytes[LOOK_BYTES];
    struct iovec piece = {bytes, most < sizeof bytes ? most : sizeof bytes};
    /* No room for descriptors: what is only looked at is not taken, and the flag tells of it. */
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};

    if (!atomic_load_explicit(&some_arrive, memory_order_relaxed))
        return (ssize_t)most;
    ssize_t n = recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0)
        return errno == EINTR ? -EAGAIN : -errno;
    return (message.msg_flags & MSG_CTRUNC) != 0 ? -EPERM : n;
}

void rights_close(struct closer *closer, int fd) {
    if (atomic_load_explicit(&some_arrive, memory_order_relaxed))
        closer_close(closer, fd);
    else
        close_fd(fd);
}
