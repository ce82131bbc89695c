/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DEATH_REAPER_H
#define DAEMON_DEATH_REAPER_H
/*
 * The reaper finds out the facts by which a lost session's memory is judged (daemon/core/death.h): from the
 * driver's list of processes, asked on a worker thread, and where that cannot tell from /proc
 * (daemon/death/holders.h).
 *
 *   idle --reaper_watch--> WATCHED --seen in the list--> idle
 *   any --reaper_wait (its process has ended)--> DYING --safe--> idle
 *
 * WATCHED are those that live and were given memory: the list is asked whether it has them, for its word
 * counts for those only that it was seen to have. How often: at once, then at intervals that grow with the
 * time since, so that a process which the list never has costs little. DYING are asked about in the same way,
 * from every 20 ms to once a second; a look into /proc follows the one before it after ten times as long as
 * that took, at least. One round is under way at a time, for all of them together.
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

struct daemon;
struct reaper_job;

struct reaper {
    struct daemon *daemon;
    struct worker worker;
    bool started;
    bool no_driver; /* no process of this machine can have work on a GPU */
    uv_timer_t timer;
    struct list subjects;   /* struct reaping.link */
    struct reaper_job *job; /* the round under way, or NULL */
    uint64_t rounds;        /* begun so far */
    uint64_t last_token;
    uint64_t next_look_ns; /* before then /proc is left alone */
    const char *list_name; /* for messages: "NVML" */
    struct process_origin_cache origin_cache;
    bool complained;
};

enum reaping_state {
    REAPING_IDLE,
    REAPING_WATCHED,
    REAPING_DYING,
};

/* One process of a session. Embedded in a client. */
struct reaping {
    enum reaping_state state;
    pid_t pid; /* 0: of a PID namespace that is not this one, nor below it */
    uid_t uid;
    int pidfd, socket; /* borrowed */
    struct death_facts facts;
    struct process_origin origin;
    bool has_origin;
    bool too_late; /* it had ended when it was first given memory, and can have mapped none */
    uint64_t token;
    uint64_t since_round;               /* DYING: only later rounds count */
    uint64_t since_ns, next_ns;         /* when it came into its state, and is asked about again */
    void (*on_facts)(struct reaping *); /* the facts are new; runs on the loop, and may end the reaping */
    struct list link;
};

int reaper_start(struct reaper *reaper, struct daemon *daemon);
void reaper_stop(struct reaper *reaper);

/* Begins with nothing known. pidfd and socket are borrowed until reaper_forget(). */
void reaping_init(struct reaping *reaping, pid_t pid, uid_t uid, int pidfd, int socket);

/* The process was given memory, or may end soon: is it in the list? Does nothing for one that was seen. */
void reaper_watch(struct reaper *reaper, struct reaping *reaping);
/* The process has ended (facts.process_over): from now on on_facts() is called with each fact, never from
 * inside this call. */
void reaper_wait(struct reaper *reaper, struct reaping *reaping);
/* Gives up; harmless when it is idle. */
void reaper_forget(struct reaping *reaping);

/* Whether the other end of a Unix socket has been closed by all who had it. */
bool reaper_socket_is_over(int socket);

#endif
