/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUCCESSION_H
#define DAEMON_SUCCESSION_H
/*
 * How a daemon keeps an estate, and how it begins with that of the daemon before. Without a store there is no
 * estate: the calls do nothing.
 *
 *   succession_open() ──▶ pools and scopes are made ──▶ succession_begin() ──▶ the loop runs
 *
 * The estate of a daemon that died three times before it was ready is let go: its descriptors are closed, and its
 * clients have to come again. So is one that cannot be read. Memory of it that processes have mapped is theirs, and
 * is lent by no daemon.
 */
#include <stdbool.h>

#include "daemon/data/kept_data.h"
#include "daemon/estate/estate.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/estate_file.h"
#include "daemon/loop/identity.h"
#include "daemon/loop/store.h"
#include "daemon/supply/pools.h"

struct clients;
struct core;

struct succession {
    struct store *store; /* borrowed */
    struct estate_file file;
    struct estate estate;
    struct desk desk;
    bool is_heir; /* of a daemon before */
    struct pool_place places[PROTO_POOLS_MAX];
    uint32_t place_records[PROTO_POOLS_MAX];
    unsigned n_places;
    struct estate_kind kinds[ESTATE_KINDS_MAX];
};

/* Makes an estate, or opens that of the daemon before, whose identity is then this one's. Returns 0, also where
 * there is none, or a negative errno with which the daemon may not start (logged). */
int succession_open(struct succession *succession, struct store *store, struct identity *identity);

/* The core has its pools and scopes: it begins to keep its records, or with those of the daemon before. Returns 0,
 * or a negative errno with which the daemon may not start (logged); the next start may do better. */
int succession_begin(struct succession *succession, struct core *core, struct clients *clients);

/* The daemon serves. */
void succession_note_ready(struct succession *succession);

/* The estate is let go: a restart ends all sessions. Returns how many descriptors are not stored any more. */
size_t succession_drop(struct succession *succession, struct core *core);

/* Whether this program reads an estate of that format: the versions of its parts and its kinds with their sizes, as in
 * "1/1 1:64 2:240". Where not, says why. */
#define SUCCESSION_TEXT_SIZE 128u
bool succession_reads(const char *format, char why[SUCCESSION_TEXT_SIZE]);

/* From now on nothing is written: all is left to a successor. */
void succession_leave(struct succession *succession, struct core *core);

/* Frees the bookkeeping. Accepts a zeroed one. */
void succession_close(struct succession *succession);

#endif
