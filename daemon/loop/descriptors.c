/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/descriptors.h"

#include <errno.h>
#include <sys/resource.h>

#include "base/cleanup.h"

bool descriptors_are_short(int fd) {
    struct rlimit limit;

    if (fd < DESCRIPTORS_KEPT || getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return false;
    return (rlim_t)fd + DESCRIPTORS_KEPT >= limit.rlim_cur;
}

int descriptors_for_client(int fd) {
    if (!descriptors_are_short(fd))
        return fd;
    close_fd(fd);
    errno = EMFILE;
    return -1;
}
