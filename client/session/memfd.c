/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/memfd.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"

int memfd_map(int fd, size_t size_bytes, const char *what, void **ret_memory) {
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (memory == MAP_FAILED)
        return error_set(GPUPOOL_E_DRIVER, "mapping %s: %s (%s)", what, strerrorname_np(errno),
                         strerrordesc_np(errno));
    if (madvise(memory, size_bytes, MADV_DONTFORK) < 0) {
        int error = errno;
        munmap(memory, size_bytes);
        return error_set(GPUPOOL_E_DRIVER, "keeping %s out of forked children: %s (%s)", what,
                         strerrorname_np(error), strerrordesc_np(error));
    }
    *ret_memory = memory;
    return 0;
}
