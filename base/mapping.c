/* SPDX-License-Identifier: Apache-2.0 */
#include "base/mapping.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

int mapping_make(int fd, uint64_t size_bytes, uint64_t align_bytes, void **ret_memory) {
    if (size_bytes > UINT64_MAX - align_bytes)
        return -ENOMEM;
    /* Reserved address space, which no other thread gets meanwhile. The surplus is unmapped below. */
    uint64_t reserved_bytes = size_bytes + align_bytes;
    char *reserved =
        mmap(NULL, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
        return -errno;
    uint64_t before_bytes = -(uintptr_t)reserved & (align_bytes - 1);
    char *wanted = reserved + before_bytes;
    void *memory = mmap(wanted, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (memory == MAP_FAILED) {
        int r = -errno;
        munmap(reserved, reserved_bytes);
        return r;
    }
    if (before_bytes > 0)
        munmap(reserved, before_bytes);
    munmap(wanted + size_bytes, align_bytes - before_bytes);
    *ret_memory = memory;
    return 0;
}
