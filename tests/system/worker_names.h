/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SYSTEM_WORKER_NAMES_H
#define TESTS_SYSTEM_WORKER_NAMES_H
/*
 * The commands of a worker (worker.c) that are about names. An opened name has the number N of a buffer, which is the
 * name's first buffer then.
 *
 *   publish N NAME FLAGS (with a directory of some parts)   unpublish N NAME
 *   open-name N NAME MS (and its directory is looked at)   close-name N
 *   acquire-sleeper N device BYTES (GPUPOOL_CAN_SLEEP)   open-sleeper N NAME MS (GPUPOOL_NAME_CAN_SLEEP)
 *   sleep-name N NAME   wake-name N NAME MS GENERATION
 *   build N NAME MS ("ok builds", or "ok there": it is open)   abandon N NAME
 *   watch N NAME MS GENERATION ("ok" and the present one)
 */
#include <gpupool/gpupool.h>
#include <stdbool.h>

/* Serves a command. Returns false where it is another one. */
bool serve_names(struct gpupool_client *client, const char *word, unsigned number, struct gpupool_buffer *buffer,
                 const char *name, unsigned long long first, unsigned long long second);

#endif
