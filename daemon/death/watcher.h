/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DEATH_WATCHER_H
#define DAEMON_DEATH_WATCHER_H
/*
 * The watcher finds out the facts by which a lost session's memory is judged (daemon/core/death.h). It asks
 * the driver's list of processes on a worker thread, and looks into /proc where the list cannot tell
 * (daemon/death/holders.h).
 *
 *   IDLE --watcher_watch_living--> LIVING --seen in the list--> IDLE
 *   any --watcher_watch_ended (the process has ended)--> ENDED --safe--> IDLE
 *
 * LIVING processes were given memory. The watcher asks whether the list has them, because the list's word
 * counts only for processes that it was seen to have. It asks at once, then at intervals that grow with the
 * time since, so that a process which the list never has costs little. The watcher asks about ENDED processes
 * in the same way, at intervals from 20 ms to 1 s. Between two looks into /proc lies at least ten times the
 * duration of the first. One round is in progress at a time, for all processes together.
 *
 * The list also tells how much memory each client has on the GPUs beside the pools.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "base/list.h"
#include "daemon/core/death.h"
#include "daemon/death/processes.h"
#include "daemon/loop/worker.h"
#include "gpu/gpu.h"

struct watcher_job;

struct watcher {
    const struct gpu *gpu; /* NULL: none */
    struct worker worker;
    bool started;
    bool no_driver; /* no process of this machine can have work on a GPU */
    uv_timer_t timer;
    struct list processes; /* struct watched.process_link: all */
    size_t n_processes;
    struct list subjects;    /* struct watched.link: those that are asked about */
    struct watcher_job *job; /* the round under way, or NULL */
    uint64_t rounds;         /* begun so far */
    uint64_t last_token;
    uint64_t next_look_ns; /* before then /proc is left alone */
    const char *list_name; /* for messages: "NVML" */
    struct process_origin_cache origin_cache;
    bool complained;
    bool stalled;      /* the list does not come, as the log has told */
    uint64_t sizes_ns; /* when the list last said or failed to say what living processes have; 0: it is due */
};

enum watched_state {
    WATCHED_IDLE,
    WATCHED_LIVING,
    WATCHED_ENDED,
};

/* One process of a session. Embedded in a client. */
struct watched {
    enum watched_state state;
    pid_t pid; /* 0: of a PID namespace that is not this one, nor below it */
    uid_t uid;
    int pidfd, socket; /* borrowed until watcher_forget() */
    struct death_facts facts;
    struct process_origin origin;
    bool has_session; /* a living client of the daemon: no suspect */
    bool has_origin;
    bool too_late; /* it had ended when it was first given memory, and can have mapped none */
    uint64_t token;
    uint64_t since_round;               /* ENDED: only later rounds count */
    uint64_t since_ns, next_ns;         /* when it came into its state, and is asked about again */
    uint64_t own_bytes; /* of the GPUs, beside the pools; GPU_USED_UNKNOWN: not known, or not yet */
    void (*on_facts)(struct watched *); /* there are new facts; runs on the loop, and may free the process */
    struct list link, process_link;
};

void watcher_init(struct watcher *watcher);

/* Starts the worker. gpu: the driver, NULL: none; borrowed. Returns 0 or a negative errno. */
int watcher_start(struct watcher *watcher, const struct gpu *gpu, bool is_simulated, uv_loop_t *loop);
void watcher_stop(struct watcher *watcher);

/* Asks whether the list has a process that was given memory, or may end soon. Does nothing for a process that
 * was seen in it. */
void watcher_watch_living(struct watcher *watcher, struct watched *watched);

/* Asks about a process that has ended (facts.process_over). From now on on_facts() is called with each fact,
 * never from inside this call. */
void watcher_watch_ended(struct watcher *watcher, struct watched *watched);

/* Whether the worker gets on; to be asked at intervals (see worker_is_alive). Says in the log when it stalls
 * and when it has come back. */
bool watcher_gets_on(struct watcher *watcher);

/* Enters a process of a client, IDLE, and takes it out. Works before the start, too. */
void watcher_add(struct watcher *watcher, struct watched *watched);
void watcher_remove(struct watcher *watcher, struct watched *watched);

/* Stops asking about a process. Harmless when it is idle. */
void watcher_forget(struct watched *watched);

/* Asks the list for the memory of living processes, if its last word is older than a second. The answer comes
 * later. While there are sessions it is asked every few seconds without this. */
void watcher_refresh_sizes(struct watcher *watcher);

/* Whether all processes that had the other end of a Unix socket have closed it. */
bool watcher_socket_is_over(int socket);

#endif
