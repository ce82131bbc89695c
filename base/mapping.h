/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_MAPPING_H
#define BASE_MAPPING_H
/* Shared memory at addresses that suit huge pages. */
#include <stdint.h>

/* Maps size_bytes from the start of fd, shared, to read and to write, at an address that is a multiple of
 * align_bytes (a power of two, at least a page). Only where address and offset agree like this does the
 * kernel map a huge page of the file by one entry, which is what makes first touches, and a driver's
 * registration, cheap; mmap alone sees to it only where shared memory gets huge pages by default. Returns 0
 * and the memory, which munmap takes back, or a negative errno. */
int mapping_make(int fd, uint64_t size_bytes, uint64_t align_bytes, void **ret_memory);

#endif
