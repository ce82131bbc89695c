/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_MEMFD_H
#define CLIENT_SESSION_MEMFD_H
/* Checks a descriptor from the daemon before it is mapped. */
#include <stdint.h>

/* NULL when fd is a memfd of the size that was said, and sealed so that it stays so; else what is wrong with
 * it, a constant string that speaks of a segment's. */
const char *memfd_flaw(int fd, uint64_t size_bytes);

#endif
