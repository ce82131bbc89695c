/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_RESTARTS_DAEMON_H
#define TESTS_GPU_RESTARTS_DAEMON_H
/*
 * The daemon that the program restarts kills, and its manager: the process that holds what the daemon stores, and
 * starts the next one. It is a keeper, which this program starts and ends, or a systemd that has started the unit
 * already.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct restarts_daemon {
    const char *unit; /* of systemd; NULL: the manager is a keeper */
    pid_t manager;
    char socket[96], admin[96];
    char log_path[96];  /* of the daemon's log */
    char processes[96]; /* the file with the number of the daemon's process */
    FILE *log;
    unsigned n_ready; /* daemons that the log had become ready, as far as it was read */
    /* At the beginning: descriptors that the manager has and the daemon does not know, and descriptors and records of
     * the daemon that are not those of segments. */
    uint64_t unknown, others, records;
};

/* The pools of a keeper's daemon. */
struct restarts_pools_setting {
    const char *gpu;
    unsigned device_mib, host_mib; /* limits */
};

/* Starts a keeper, which has its files in the folder, and waits for its daemon. Sets $GPUPOOL_SOCKET. Returns NULL, or
 * what failed. */
const char *restarts_keep(struct restarts_daemon *daemon, const char *folder,
                          const struct restarts_pools_setting *setting);

/* Takes the daemon of a running unit with the sockets that are usual, whose log is appended to this file. Sets
 * $GPUPOOL_SOCKET. Returns NULL, or what failed. */
const char *restarts_adopt(struct restarts_daemon *daemon, const char *unit, const char *log_path);

/* Ends a keeper. Returns whether it ended well. */
bool restarts_end_keeper(struct restarts_daemon *daemon);

/* The process of the daemon. 0: there is none now. */
pid_t restarts_find(const struct restarts_daemon *daemon);

/* How many daemons have become ready so far. */
unsigned restarts_count_ready(struct restarts_daemon *daemon);

/* The manager executes its program anew, and keeps its descriptors. */
void restarts_execute_manager(const struct restarts_daemon *daemon);

/* In a new process: becomes gpupoolctl, which upgrades the daemon. */
_Noreturn void restarts_be_upgrade(const struct restarts_daemon *daemon);

/* Asks the daemon. Returns its line, in memory that is used again; NULL: it does not answer. */
const char *restarts_ask(const struct restarts_daemon *daemon, const char *command);

/* Notes what is stored before there is any load. Returns NULL, or what failed. */
const char *restarts_note_store(struct restarts_daemon *daemon);

/* Looks whether the sessions are gone, and all they had. Returns NULL, or what is left. */
const char *restarts_find_left(const struct restarts_daemon *daemon, uint64_t *ret_amount);

bool restarts_log_says(const struct restarts_daemon *daemon, const char *word);
void restarts_show_log(const struct restarts_daemon *daemon);

#endif
