/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_OPEN_H
#define CLIENT_API_OPEN_H
/*
 * Opening and closing clients, and the default client: for callers that have no place to keep one. It is
 * opened by its first use, with the options that the environment gives, one for a process. A forked child
 * opens one of its own. It closes by gpupool_close(), else with the process.
 */
#include <stdatomic.h>

struct gpupool_client;

/* The default client. NULL: none is open. gpupool_default() opens it. */
extern _Atomic(struct gpupool_client *) open_default;

#endif
