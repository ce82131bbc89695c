/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_EXTENT_SIZE_H
#define CLIENT_CORE_EXTENT_SIZE_H
/*
 * How much memory a stream heap leases at a time. The rule, with what it was measured on, is in the .c file.
 */
#include <stdint.h>

#include "base/units.h"

struct stream_heap;

/* An extent is at least one segment's granule. */
#define EXTENT_BYTES_MIN (2 * MIB)

/* How large an extent should be for a request of a size: a multiple of EXTENT_BYTES_MIN, or just that size.
 * The stream heap is locked. */
uint64_t extent_size_locked(const struct stream_heap *stream_heap, uint64_t size_bytes);

#endif
