/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_JOINT_RESTARTS_H
#define TESTS_JOINT_RESTARTS_H
/*
 * Deaths of the simulated daemon, and its successors. The daemon dies before a store into its estate, in the middle
 * of one, around a message, or between two things that it does. Nothing that it has is freed or told then; its
 * descriptors are closed. The next one is made by the daemon's own inheritance (daemon/core/inherit.h,
 * daemon/data/inheritance.h) of the estate and of the store, and may die while it reads or with its first packets.
 *
 * The successor reads at the moment of the death, so that the model can look at its core. It serves once the daemon
 * has been away for as long as was drawn.
 */
#include <stdbool.h>

#include "daemon/data/clients.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/store.h"

struct segment;

extern struct desk joint_desk;

/* The first daemon makes its estate. */
void restarts_begin(void);
/* Runs a part of the daemon, which may die in it. Returns what the part does; true where it died. */
bool restarts_run(bool (*part)(void));
/* A successor is there, and does not serve yet. */
bool restarts_is_away(void);
bool restarts_come_back(void);
/* The records agree with what the daemon knows. Between steps. */
void restarts_check(void);

/* --- daemon.c */

/* Makes a core and the record of clients, which have nothing. */
struct clients *joint_daemon_make(void);
/* The daemon is no more: closes what it had, and forgets the rest. */
void joint_daemon_bury(void);
/* Takes a segment for the successor's core. Returns 0, or -ENOENT: it cannot be had again. */
int joint_take_segment(void *argument, struct segment *segment);
/* Segments that the successor does not know never were lent. */
void joint_drop_unknown_segments(void);
/* The successor serves from now on. */
void joint_daemon_ready(void);

/* --- store.c */

/* The daemon has died: what is stored is there for the next one. */
void joint_store_pass_on(void);
/* Drops descriptors that the successor did not take. */
void joint_store_settle(void);
unsigned joint_store_count(enum store_kind kind);

#endif
