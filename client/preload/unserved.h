/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_UNSERVED_H
#define CLIENT_PRELOAD_UNSERVED_H
/*
 * The driver's functions that give memory which the pools do not serve: they count for the report and call
 * the real function. The audit library binds references to them only if a report is asked for (report.h), so
 * that without one such a call costs nothing. With one it costs a few additions.
 *
 * Objects whose driver is the real one (libraries for communication) are bound to these,
 * too, and to none of the functions that lend: what they ask of the driver is CUDA's own memory.
 *
 * A function that lends is preferred to one of these of the same name.
 */
#include <stdint.h>

/* The prefix by which the audit library finds them. */
#define COUNTED_PREFIX "gpupool_counted_"

/* Replaces the function that cuGetProcAddress() found by the one that counts, if a report is asked for and
 * there is one. Otherwise *function stays. */
void unserved_answer(const char *name, void **function, int version, uint64_t flags);

#endif
