/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_OPTIONS_H
#define CLIENT_API_OPTIONS_H
/*
 * The settings of a client: the program's options, else the environment's, else the defaults.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"
#include "client/include/gpupool/gpupool.h"

/* A chunk goes through one block. Large, so that what the driver and the fences cost for each is little
 * beside the copying (some 3 us to 40 us at 55 GB/s); small, so that the ring stays within the processor's
 * cache. */
#define COPY_CHUNK_DEFAULT_BYTES (2 * MIB)
#define COPY_CHUNK_MIN_BYTES     (64 * KIB)
#define COPY_CHUNK_MAX_BYTES     (64 * MIB)

/* Copying threads, the calling one included. More than some do not pay: they share the memory's bandwidth. */
#define COPY_THREADS_DEFAULT_MAX 8u
#define COPY_THREADS_MAX         32u

/* How staging (<gpupool/staging.h>) cuts copies up. */
struct copy_options {
    unsigned threads;     /* that share in a copy, the calling one included */
    uint64_t chunk_bytes; /* the largest */
};

/* Checks the program's options (NULL: none), and fills in all that they leave open. The strings are borrowed
 * from the program or the environment. 0 or INVALID. */
int options_read(const struct gpupool_options *options, struct gpupool_options *ret_options);

/* Reads $GPUPOOL_STAGING_THREADS and $GPUPOOL_STAGING_CHUNK. with_threads: threads of the library may be
 * started. 0 or INVALID. */
int options_read_copying(bool with_threads, struct copy_options *ret_copying);

/* Reads $GPUPOOL_ARENAS: 0, or 1, which it is if it is not set. 0 or INVALID. */
int options_read_arenas(bool *ret_arenas);

#endif
