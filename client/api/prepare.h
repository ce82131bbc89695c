/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_PREPARE_H
#define CLIENT_API_PREPARE_H
/*
 * Preparing: memory of a pool is mapped before there is work that the mapping would stop. The public call is
 * gpupool_prepare().
 */
#include <stdint.h>

struct gpupool_client;

/* Prepares host memory for gpupool_open(): of the pool near the calling thread's current device, or, where
 * there is none, of the pool near the calling thread. 0, or what gpupool_prepare() says. */
int prepare_host(struct gpupool_client *client, uint64_t bytes);

#endif
