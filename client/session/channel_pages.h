/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_CHANNEL_PAGES_H
#define CLIENT_SESSION_CHANNEL_PAGES_H
/*
 * The pages of a channel in which this process has a place (proto/channel.h), mapped: its own for writing, the others
 * for reading. Not inherited by forked children.
 */
#include <stdint.h>

#include "base/own_mapping.h"
#include "client/core/channel.h"
#include "proto/proto.h"

struct session;

struct channel_pages {
    struct channel_view view;
    unsigned place;
    void *own; /* the place's page */
    unsigned n_pages;
    struct own_mapping *mappings[PROTO_CHANNEL_PLACES + 1]; /* the roll, then those of the places */
};

/* Maps the pages of the channel and the place that a CHANNEL told. 0; DRIVER, PROTOCOL, and what the connection says:
 * nothing is mapped. */
int channel_pages_open(struct session *session, const struct proto_channel_reply *reply,
                       struct channel_pages *ret_pages);

/* Unmaps them. No thread uses them any more. */
void channel_pages_close(struct channel_pages *pages);

#endif
