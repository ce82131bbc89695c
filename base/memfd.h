/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MEMFD_H
#define BASE_MEMFD_H
/* Memory files that processes share: their size is sealed. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

/* Without these, one holder could shrink the file under another: SIGBUS at the next access. */
#define MEMFD_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Whether it is a memory file of this size with these seals and no others: one that the daemon made. */
static inline bool memfd_is_sealed(int fd, uint64_t size_bytes) {
    struct stat status;

    return fstat(fd, &status) == 0 && (uint64_t)status.st_size == size_bytes &&
           fcntl(fd, F_GET_SEALS) == MEMFD_SEALS;
}

#endif
