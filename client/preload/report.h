/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_REPORT_H
#define CLIENT_PRELOAD_REPORT_H
/*
 * The report of a process: what gpupool lent it and what it did not, by call and bytes. It is written at the
 * process's end, if the variable GPUPOOL_REPORT asks for it: "-" for standard error, else the absolute path
 * of a file, to which the report is appended. gpupoolctl run --report sets it.
 *
 * States: off for good, or counting until the report is written, which happens once. The end is exit(), the
 * return from main(), _exit() or _Exit(), which this library defines for it. A process that ends by a signal
 * or executes another program writes nothing, and neither does one that asked for no memory. A forked child
 * begins with zeros. A child that shares its parent's memory (vfork()) writes nothing.
 *
 * Counters are atomics without a lock, and the report is one write(): other threads may go on meanwhile.
 * Thread-safe. Off, each function is one comparison.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REPORT_VARIABLE "GPUPOOL_REPORT"

/* A line of the report: a call and what became of it. Its words are in report.c. */
enum report_row {
    REPORT_LENT_DEVICE,
    REPORT_LENT_HOST,
    REPORT_LENT_IN_ORDER, /* in stream order */
    REPORT_REFUSED,       /* by the pool: the program saw an error */
    REPORT_NO_POOL,       /* device memory: no daemon, or no pool of that kind */
    REPORT_NO_HOST_POOL,
    REPORT_CONTEXT,      /* device memory: not the primary context */
    REPORT_HOST_CONTEXT, /* pinned memory, likewise */
    REPORT_CAPTURE,      /* memory in stream order: while a stream is captured */
    REPORT_OWN_POOL,
    REPORT_POOL_MADE,
    REPORT_MANAGED,
    REPORT_VMM,
    REPORT_VMM_HOST,
    REPORT_ARRAY,
    REPORT_WRITE_COMBINED,
    REPORT_REGISTERED,
    REPORT_ROWS,
};

/* Adds a call for that many bytes. */
void report_add(enum report_row row, uint64_t size_bytes);

/* Memory came on loan or was given back. The report shows the most that there was. */
void report_lent(uint64_t size_bytes);
void report_returned(uint64_t size_bytes);

/* Whether a report was asked for. It does not change while the process lives. */
bool report_is_asked(void);

#endif
