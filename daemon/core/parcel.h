/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_PARCEL_H
#define DAEMON_CORE_PARCEL_H
/*
 * A parcel: a block on its way from a session to others of the same tenant. It holds the block as a lease
 * does, and belongs to no session: the sender may release the block, leave or die meanwhile. Each parcel has
 * a token of its own.
 *
 *   open --taken by as many sessions as were named--> gone
 *   open --revoked, or its time is up--> gone
 *
 * The time counts from the sending, or, of a parcel that is held, from the end of the sender's session. Until
 * then the session lists it, and it has no deadline.
 *
 * A taker gets a lease on the block before the parcel goes. With the last holder, lease or parcel, the block
 * goes back to the heap.
 *
 * A parcel may be held by an edition (edition.h) or a channel (channel.h). Then it has no deadline, its takers are
 * not counted, and it ends with that object alone.
 *
 * A parcel counts as a lease of its tenant (QUOTA_LEASES), and its block's bytes stay charged to the tenant.
 */
#include <stdint.h>

#include "daemon/core/types.h"

/* Opens a parcel on a shared block that the session holds. Whether the tenant may have it (PARCELS_MAX,
 * tenant_may_have()) is the caller's to ask before. token: random, fresh. send: its takers, lifetime and
 * flags. Returns 0, -ENOMEM, or -EBADMSG: another one has the token. */
int parcel_open(struct session *session, struct block *block, const struct proto_token *token,
                const struct proto_send *send, uint64_t now_ns);

/* For heir.h. Opens a parcel as a predecessor's: wanted. sender: the session that holds it; NULL: its time has
 * begun, or it is a part of wanted->edition, the next one. Returns as parcel_open(). */
int parcel_restore(struct core *core, const struct parcel *wanted, struct session *sender,
                   struct parcel **ret_parcel);

/* Opens a parcel that is the edition's next part, on a shared block that the session holds, behind the fence
 * of the buffer. Otherwise as parcel_open(). */
int parcel_open_part(struct edition *edition, struct session *session, struct block *block,
                     const struct proto_token *token, const struct proto_publish_buffer *buffer,
                     uint64_t now_ns);

/* Opens the parcel of a channel's slots, on a shared block. session: that makes the channel; NULL: a predecessor made
 * it. It has no record of its own. Otherwise as parcel_open(). */
int parcel_open_ring(struct channel *channel, struct session *session, struct block *block,
                     const struct proto_token *token, uint64_t now_ns);

/* The parcel of a token, or NULL. */
struct parcel *parcel_find(const struct core *core, const struct proto_token *token);

/* A session has taken it, and has a lease on the block by now. The last taker ends the parcel. */
void parcel_take(struct core *core, struct parcel *parcel);

void parcel_close(struct core *core, struct parcel *parcel);

/* The session ends, or is lost: the time of the parcels that it holds begins. */
void parcels_let_go(struct session *session, uint64_t now_ns);

/* Closes parcels whose time is up, a bounded number of them. */
void parcels_expire(struct core *core, uint64_t now_ns);

/* Closes those that a session sent (0: any), of a tenant (NULL: any), but for those that another object holds. Returns how many, and the bytes that
 * only they held. */
unsigned parcels_close(struct core *core, uint64_t sender, const struct tenant *tenant, uint64_t *ret_bytes);

/* When the next one is due; NS_FOREVER: there is none. */
uint64_t parcels_next_ns(const struct core *core);

/* Whether the table is in order, and holds what the tenants and the pools count. */
bool parcels_are_valid(const struct core *core);

#endif
