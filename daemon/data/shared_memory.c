/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/memfd.h"
#include "daemon/loop/descriptors.h"

static int map(int fd, size_t size_bytes, void **ret_memory) {
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    /* The loop looks there, and a client can be made to swap by its own limits. As far as the daemon may. */
    (void)mlock2(memory, size_bytes, MLOCK_ONFAULT);
    *ret_memory = memory;
    return 0;
}

int shared_memory_make(const char *name, size_t size_bytes, void **ret_memory) {
    _cleanup_(close_fdp) int fd = descriptors_for_client(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));

    if (fd < 0)
        return -errno;
    if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)size_bytes) < 0 || /* backing.c says why the mode */
        fcntl(fd, F_ADD_SEALS, MEMFD_SEALS) < 0)
        return -errno;
    int r = map(fd, size_bytes, ret_memory);
    return r < 0 ? r : take_fd(&fd);
}

int shared_memory_take(int fd, size_t size_bytes, void **ret_memory) {
    return memfd_is_sealed(fd, size_bytes) ? map(fd, size_bytes, ret_memory) : -EBADMSG;
}
