/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_ERROR_H
#define CLIENT_SESSION_ERROR_H
/*
 * The number and the text of the calling thread's last error. Each thread owns one fixed buffer; a text too
 * long for it is cut. The function that fails writes what it knows, its callers put in front what they were
 * about: "acquiring 64 MiB from pool 1: mapping segment 7 …: cudaErrorMapBufferObjectFailed (…)".
 *
 * Each public call that can fail ends with error_end(), except fast paths that hit: to note the number
 * cost 1.9 ns of 9.9 for an acquire and its release (tests/bench/gpupool_pairs.c). So the number is that of
 * the last such call, also where a part of the call failed and another way was taken. While the number is 0,
 * users see no text.
 */
#include <stdbool.h>
#include <stddef.h>

#include "client/session/thread.h"

/* Replaces the calling thread's text, and notes the number. Returns error, so that a caller can return it. */
int error_set(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts words and ": " in front of the text, and notes the number. Returns error. */
int error_prefix(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says that the process's heap has no memory for bookkeeping. Returns NO_MEMORY. */
int error_no_memory(void);

/* Says that a descriptor which came with an answer was lost, because this process had none free. Returns
 * DRIVER. what: the object that the descriptor was of. */
int error_lost_descriptor(const char *what);

/* Whether this process has no descriptor free at this moment. */
bool error_lacks_descriptors(void);

/* An addition to the text of a system call that failed with EMFILE or ENFILE: the limit's name. Else "". */
const char *error_advice(int number);

/* Ends a public call that returns r: below 0, the call failed and has set the text. Returns r. */
static inline int error_end(int r) {
    client_thread()->error = r < 0 ? r : 0;
    return r;
}

/* For cleaning up after a failure by calls that may fail themselves: keeps the text, and brings it back. The
 * number is noted again by error_prefix() or error_end(). */
void error_save(char text[static ERROR_TEXT_SIZE]);
void error_restore(const char text[static ERROR_TEXT_SIZE]);

#endif
