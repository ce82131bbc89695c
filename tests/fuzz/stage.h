/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_STAGE_H
#define TESTS_FUZZ_STAGE_H
/*
 * A stage: a daemon in this process, of its real code (core, connections, admin socket, suppliers, watcher,
 * backings), in a world that acts on orders alone. The stage defines the functions of these headers and
 * libraries in place of the daemon's own:
 *
 * - daemon/loop/worker.h: jobs are kept, and run on the caller's thread when stage_run_job() says so.
 * - daemon/loop/peer.h: a socket's other end is the process that stage_connect() was given; its pidfd becomes
 *   readable with stage_kill().
 * - daemon/loop/log.h: messages are made and not shown, unless GPUPOOL_FUZZ_LOG is set.
 * - daemon/supply/host_pages.h: pages are not touched.
 * - daemon/supply/numa.h: one node.
 * - clock_gettime(): a clock that stands still between calls of stage_pass().
 * - uv_timer_…(): timers that go by that clock.
 * - struct gpu: one device with memory that is never touched, and a list of processes.
 *
 * So a stage depends on nothing but the calls that are made to it, and takes tens of microseconds to set up.
 * There is one at a time.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/config/config.h"
#include "daemon/daemon.h"

#define STAGE_PROCESSES 8u
#define STAGE_UID       1000u /* users are this one and those after it; the daemon's own is another */
#define STAGE_GID       2000u /* a group that every other user is in */

/* A process that may connect, and die. */
struct stage_process {
    pid_t pid; /* 0: never was one under this number */
    uid_t uid;
    int death_fd; /* what its pidfds are copies of: readable once it is dead */
    bool dead;
    bool listed;  /* the driver lists it: from its beginning until stage_unlist() */
    bool foreign; /* of another PID namespace: the daemon sees no pid, and would not know it in the driver's
                     list */
};

struct stage {
    struct config config;
    struct daemon *daemon;
    uint64_t now_ns;
    struct stage_process processes[STAGE_PROCESSES];
    pid_t next_pid;
    bool driver_fails;       /* the next driver or kernel call for memory, once */
    bool process_list_fails; /* NVML does not answer */
    bool device_lost;        /* no call on it works any more */
    uint64_t next_address;
    void (*on_free)(const void *memory); /* the driver is given memory back: may be NULL */
};

/* One stage a process: set up, and put away again with everything that it opened. settings:
 * "section.key=value", NULL-terminated, on top of small pools. */
struct stage *stage_new(const char *const *settings);
void stage_free(struct stage *stage);

/* A new process of a user under a number (below STAGE_PROCESSES); the one before it must be gone for good. */
struct stage_process *stage_begin_process(struct stage *stage, unsigned number, uid_t uid);

/* Connects a process to the data socket, or the admin socket. Returns its end, the caller's; the daemon may
 * have closed the other at once. */
int stage_connect(struct stage *stage, const struct stage_process *process);
int stage_connect_admin(struct stage *stage, const struct stage_process *process);

/* The process ends; the driver lists it until stage_unlist(). Its sockets are the caller's to close. */
void stage_kill(struct stage_process *process);
void stage_unlist(struct stage_process *process);

/* Lets the daemon do what there is to do, for a bounded number of turns of its loop. */
void stage_turn(struct stage *stage);

/* Runs the first job of a worker (in order of their start), if there is one, and what it led to. False: none.
 */
bool stage_run_job(struct stage *stage, unsigned worker);
bool stage_run_any_job(struct stage *stage);

/* Time passes; timers go off on the way, in order. */
void stage_pass(struct stage *stage, uint64_t ns);

/* All that is checked after each step. */
void stage_check(const struct stage *stage);

/* stage_world.c's, for stage.c: forgets the workers of the stage before. */
void stage_world_reset(struct stage *stage);
extern const struct gpu stage_gpu;

#endif
