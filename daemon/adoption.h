/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADOPTION_H
#define DAEMON_ADOPTION_H
/*
 * A daemon whose keeper ends, and the keeper that takes the daemon on (daemon/keeper/keeper.h).
 *
 *   held ──the keeper ends──▶ adrift ──adoption_begin()──▶ moving ──▶ at the barrier ──▶ held
 *                               ▲                            │             │
 *                               └──────the new keeper ends───┴─────────────┘
 *
 * The new keeper's first child asks the living daemon for this (adoption_ask.h). The daemon then sends all of its
 * stored descriptors again, under their names, as the keeper's socket takes them: the loop does not wait. The estate
 * goes last. So if the daemon dies in between, the next one finds no estate, and begins with nothing, as if no keeper
 * had come. Descriptors that come and go meanwhile are sent as ever: the keeper stores an open file once.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "daemon/admin/admin_terms.h"
#include "daemon/loop/notifier.h"

struct daemon;

struct adoption {
    struct daemon *daemon; /* borrowed */
    int keeper_pidfd;      /* -1: there is no keeper, or it has ended */
    int keeper_pid;
    uv_poll_t *on_keeper_end;
    char path[NOTIFIER_PATH_SIZE]; /* of the keeper's socket */
    /* moving */
    int socket; /* connected to the new keeper's; -1: not moving */
    uv_poll_t *on_writable;
    int *fds;    /* by slot; -1: none */
    size_t next; /* the slot to look at */
    size_t n_sent;
    /* at the barrier */
    int barrier; /* hangs up when the keeper has read all before it; -1: not there */
    uv_poll_t *on_barrier;
};

/* Sets it up for a daemon without a keeper. */
void adoption_init(struct adoption *adoption, struct daemon *daemon);

/* A keeper started this process, and its end is to be noticed. */
void adoption_start(struct adoption *adoption);

/* Has a keeper hold this daemon, whose own has ended. notify: the path of its socket; pid: the keeper's; limit: of the
 * descriptors that it holds. Returns 0; -EALREADY: the daemon has a keeper; -ENODATA: it has no estate; or another
 * negative errno. Then it says why. */
int adoption_begin(struct adoption *adoption, const char *notify, uint64_t pid, uint64_t limit,
                   char why[ADMIN_WHY_SIZE]);

/* Closes what it opened. The loop has to run once more. Accepts one that was not started. */
void adoption_stop(struct adoption *adoption);

#endif
