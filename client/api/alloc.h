/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_ALLOC_H
#define CLIENT_API_ALLOC_H
/*
 * Memory by plain pointers, for allocator plug-ins, over a client's cache; and the default client, for those
 * that have no place to keep one: opened when it is first needed, with the options that the environment
 * gives, one for a process. A forked child opens one of its own. It closes when it is told to, else with the
 * process.
 */
#include <stdint.h>

struct gpupool_client;

/* How long gpupool_alloc() waits where neither the options nor the environment say. Longer than a pool takes
 * to grow (pinned host memory: 0.4 s a GiB at worst, H200) and others to give up what they keep idle; people
 * still wait that long to be told that there is no memory. */
#define ALLOC_TIMEOUT_DEFAULT_NS (10 * NS_PER_S)

/* What $GPUPOOL_ALLOC_TIMEOUT says ("250ms", "1min", "forever"), else the default. 0 or INVALID. */
int alloc_read_timeout(uint64_t *ret_timeout_ns);

/* The client closes: it is the default no more. */
void alloc_forget_client(struct gpupool_client *client);

#endif
