/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/alive.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/descriptors.h"

void alive_init(struct alive *alive) {
    alive->read_fd = alive->write_fd = -1;
}

void alive_deinit(struct alive *alive) {
    alive->read_fd = close_fd(alive->read_fd);
    alive->write_fd = close_fd(alive->write_fd);
}

int alive_need(struct alive *alive) {
    int fds[2];

    if (alive->read_fd >= 0)
        return alive->read_fd;
    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return -errno;
    /* A client could open a write end by /proc, and with that the pipe would outlive the daemon. */
    if (descriptors_are_short(fds[1]) || fchmod(fds[0], 0) < 0) {
        close_fd(fds[0]);
        close_fd(fds[1]);
        return -EMFILE;
    }
    *alive = (struct alive){.read_fd = fds[0], .write_fd = fds[1]};
    return alive->read_fd;
}
