/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H
/*
 * The daemon: the libuv loop and everything on it. It makes the objects of the folders below it and hands
 * each what it works with; no file of theirs knows struct daemon. Each of them turns events into calls of the
 * core; decisions.h carries out what the core decides.
 */
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/admin/admin.h"
#include "daemon/config/config.h"
#include "daemon/config/reload.h"
#include "daemon/data/clients.h"
#include "daemon/data/lingering.h"
#include "daemon/data/scopes.h"
#include "daemon/death/watcher.h"
#include "daemon/decisions.h"
#include "daemon/loop/identity.h"
#include "daemon/loop/listener.h"
#include "daemon/loop/notices.h"
#include "daemon/loop/notifier.h"
#include "daemon/loop/record_file.h"
#include "daemon/loop/scheduler.h"
#include "daemon/loop/store.h"
#include "daemon/succession.h"
#include "daemon/supply/pools.h"

struct core;

#define DAEMON_SIM_PATH_SIZE (CONFIG_PATH_SIZE + sizeof GPU_SIM_PATH_SUFFIX)

/* Options of the start that the configuration does not have. */
struct daemon_options {
    struct config *config;   /* borrowed; reload.h replaces its content */
    const char *config_path; /* of the file, which may not be there; NULL: none */
    /* File and command line again. Returns 0, or a negative errno with mistakes. NULL: there are none. */
    int (*reread)(void *user, struct config *ret_config, struct config_mistakes *mistakes);
    void *reread_user;
    bool private; /* ends with its last client and removes its sockets' directory */
    int ready_fd; /* gets a byte once clients can connect; -1: none */
};

struct daemon {
    uv_loop_t loop;
    struct daemon_options options;
    struct config *config;
    struct machine machine;
    struct identity identity;
    struct notices notices;
    struct core *core;
    struct store store;
    struct succession succession;
    struct listener data_listener, admin_listener;
    struct record_file record_file;
    struct closer *closer; /* of clients' sockets */
    struct lingering lingering;
    struct scheduler scheduler;
    struct clients clients;
    struct scopes scopes;
    struct admin admin;
    struct watcher watcher;
    struct notifier notifier;
    struct reload reload;
    struct decisions decisions;
    uv_timer_t housekeeping_timer, private_timer, health_timer;
    uv_signal_t on_terminate, on_interrupt, on_reload;
    bool stopping;
    bool ends_for_good; /* nothing is left to a next daemon */
    bool restarts;      /* it ends so that the next one begins */
    bool is_left;       /* the next one has all by now: nothing that happens here counts any more */
    bool watchdog;      /* the service manager waits for answers */
    bool ready_announced;
    char sim_path[DAEMON_SIM_PATH_SIZE]; /* of the simulated GPU's socket; "": none */
    uint64_t n_descriptors;              /* that it may have; 0: not known */
    unsigned n_warnings;                 /* in the configuration, that were told of when it took effect */
};

/* Looks for what is wrong with the configuration on this machine: what daemon_run() would refuse or warn of
 * before it serves. Opens no sockets, starts no workers and lends nothing. Returns 0 and the number of
 * warnings, or a negative errno where a start would be refused. Either is logged. */
int daemon_check(const struct daemon_options *options, unsigned *ret_n_warnings);

/* Has SIGTERM, SIGINT and SIGHUP wait, for a process that is about to run a daemon: daemon_run() takes them when its
 * loop can. Before that they would kill a daemon that has made sockets, or taken over a part of an estate. */
void daemon_hold_signals(bool hold);

/* daemon_run(): the service manager is to start another one. */
#define DAEMON_RESTARTS 1

/* Runs until a signal or, for a private one, the last client ends it. Returns 0, DAEMON_RESTARTS, or a negative errno
 * when it could not start (logged). */
int daemon_run(const struct daemon_options *options);

/*
 * The parts of daemon_run(), for tests that bring GPU and clients themselves: a daemon without sockets,
 * signals and GPU. daemon->machine may then be set; daemon_start() adds the pools and starts their workers
 * and the timers; clients_accept() and admin_accept() take clients, and uv_run() serves them. Both return 0
 * or a negative errno; after a daemon_start() that failed the daemon still wants its daemon_free().
 */
int daemon_new(const struct daemon_options *options, struct daemon **ret_daemon);
int daemon_start(struct daemon *daemon);
/* Everything back to nothing, in the opposite order, after the driver calls that are under way. Memory that
 * clients still hold stays mapped in them: the driver and the kernel keep it for them. */
void daemon_free(struct daemon *daemon);

/* The path of the second socket of a simulated GPU, which client/session/device.c looks for. NULL: there is
 * none, because this daemon has no sockets. */
const char *daemon_sim_path(const struct daemon *daemon, char path[DAEMON_SIM_PATH_SIZE]);

/* Ends the loop after its turn. */
void daemon_stop(struct daemon *daemon);

#endif
