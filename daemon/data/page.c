/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/page.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/descriptors.h"

int page_make(struct page *page) {
    _cleanup_(close_fdp) int fd =
        descriptors_for_client(memfd_create("gpupool-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return -errno;
    if (fchmod(fd, 0600) < 0 || ftruncate(fd, PROTO_PAGE_BYTES) < 0 || /* backing.c says why the mode */
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return -errno;
    void *memory = mmap(NULL, PROTO_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    /* The loop looks there, and a client can be made to swap by limits of its own. As far as the daemon may.
     */
    (void)mlock2(memory, PROTO_PAGE_BYTES, MLOCK_ONFAULT);
    page->fd = take_fd(&fd);
    page->memory = memory;
    return 0;
}

void page_drop(struct page *page) {
    if (page->memory != NULL)
        munmap(page->memory, PROTO_PAGE_BYTES);
    page->memory = NULL;
    page->fd = close_fd(page->fd);
}
