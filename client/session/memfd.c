/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/memfd.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>

/* Without these another holder of the memfd could shrink it under this process: SIGBUS at the next access. */
#define WANTED_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

const char *memfd_flaw(int fd, uint64_t size_bytes) {
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return "the segment's descriptor is no memfd";
    if ((seals & WANTED_SEALS) != WANTED_SEALS)
        return "the segment's memfd is not sealed against a change of size";
    if (fstat(fd, &status) < 0)
        return "the segment's descriptor has no size";
    if (status.st_size < 0 || (uint64_t)status.st_size != size_bytes)
        return "the segment's memfd has another size than its description";
    return NULL;
}
