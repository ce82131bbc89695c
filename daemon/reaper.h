/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_REAPER_H
#define DAEMON_REAPER_H
/*
 * The reaper decides when a lost session's memory is safe. Two things have to be over: the process (its pidfd
 * says so; the connection watches that) and its work on the GPUs. For the second the reaper asks the driver
 * which processes it still holds resources for, again and again while anybody waits, on a worker thread: a
 * pid that is listed no more has no work left (measured on H200: the list kept a dead pid until after its
 * last write in every case tried, also where a forked child kept the driver's descriptors open and the pidfd
 * came seconds too early). Where nobody can tell (no NVML, a process in another PID namespace), the process's
 * end alone decides.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/list.h"
#include "daemon/worker.h"

struct daemon;
struct reaper_job;

struct reaper {
    struct daemon *daemon;
    struct worker worker;
    bool started;
    uv_timer_t timer;
    struct list waiting;    /* struct reaping.link */
    struct reaper_job *job; /* the question under way, or NULL */
    uint64_t asked;         /* questions so far */
    bool complained;
};

/* One that waits. Embedded in a connection. */
struct reaping {
    pid_t pid;
    uint64_t since;                        /* only answers to later questions count */
    void (*on_gone)(struct reaping *self); /* the driver does not list the pid any more */
    struct list link;
};

int reaper_start(struct reaper *reaper, struct daemon *daemon);
void reaper_stop(struct reaper *reaper);

/* Waits for the driver to be done with the pid. on_gone runs later on the loop, never from inside this call.
 */
void reaper_wait(struct reaper *reaper, struct reaping *reaping);
/* Gives up waiting; harmless when it does not wait. */
void reaper_forget(struct reaping *reaping);

#endif
