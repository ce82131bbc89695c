/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_MEMFD_H
#define CLIENT_SESSION_MEMFD_H
/* Memory of the daemon's: its descriptor is checked, and then mapped. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/memfd.h"
#include "base/own_mapping.h"

/* NULL when fd is a memfd of the size that was said, and sealed so that it stays so; else what is wrong with
 * it, a constant string that speaks of a segment's. */
static inline const char *memfd_flaw(int fd, uint64_t size_bytes) {
    struct stat status;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return "the segment's descriptor is no memfd";
    if ((seals & MEMFD_SEALS) != MEMFD_SEALS)
        return "the segment's memfd is not sealed against a change of size";
    if (fstat(fd, &status) < 0)
        return "the segment's descriptor has no size";
    if (status.st_size < 0 || (uint64_t)status.st_size != size_bytes)
        return "the segment's memfd has another size than its description";
    return NULL;
}

/* Maps a sealed memfd of a size for reading and writing, out of reach of forked children, which would write
 * there in this process's name. what: the memory, for the text of the error. 0 or DRIVER; on failure
 * *ret_mapping stays as it was. The caller unmaps. */
int memfd_map(int fd, size_t size_bytes, const char *what, struct own_mapping **ret_mapping);

#endif
