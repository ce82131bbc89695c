/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SYSTEM_WORKER_CHANNELS_H
#define TESTS_SYSTEM_WORKER_CHANNELS_H
/*
 * The commands of a worker (worker.c) that are about channels. A place has a number N.
 *
 *   make-channel N NAME KIND SLOTS (KIND 0: host memory, kept)   join N NAME PLACE MS   leave N
 *   send-frame N - BYTE MS   receive-frame N - BYTE MS ("ok again" where a process before had received it)
 *   hold-frame N - BYTE MS (as receive-frame, and does not release it)
 *   stream-frames N - COUNT SEED (sends or receives so many frames in order, of bytes that follow from their number)
 */
#include <gpupool/gpupool.h>
#include <stdbool.h>

/* Serves a command. Returns false where it is another one. */
bool serve_channels(struct gpupool_client *client, const char *word, unsigned number, const char *name,
                    unsigned long long first, unsigned long long second);

#endif
