/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_CHANNEL_H
#define DAEMON_CORE_CHANNEL_H
/*
 * A channel (proto/channel.h), as far as the daemon knows it: its capacities, the memory of its slots, which
 * sessions are in its places, and what became of them. Elements pass without the daemon.
 *
 *   place   EMPTY, VACANT, LEFT --a session joins--> TAKEN --it leaves, or says farewell--> LEFT
 *           TAKEN --the session is lost--> DYING --its process and its GPU work are over--> VACANT
 *
 * The memory is held by a parcel (parcel.h) without takers and deadline, by whose token sessions attach. The slots that
 * a dead session has borrowed come back with its lease, by the rule of death.
 *
 *   channel   made --its name ends--> ended --no place is TAKEN or DYING--> gone
 *             made, and not KEEP --its maker's session is gone, and no place is TAKEN or DYING--> gone
 *
 * A change of a place is told to the shell (core_next_channel()), which writes it into the roll.
 */
#include "daemon/core/types.h"

/* Whether the tenant may have a further channel with so many consumer places, by the pages of channels that there may be.
 * A tenant has half of these at most, so that another one finds descriptors for its channels. */
bool channel_pages_are_left(const struct tenant *tenant, uint64_t n_consumers);

/* Makes a channel that a session wishes, of the memory of its lease, under a name that stands for nothing yet. A channel
 * with KEEP is charged as kept bytes (QUOTA_KEPT) while it has its name: the caller looks at the limits before. tokens: random, fresh: one for the block to be shared, and one for the parcel. Returns 0 or -ENOMEM. */
int channel_make(struct session *session, struct name *name, const struct proto_make_channel *make,
                 struct lease *lease, const struct proto_token *tokens, uint64_t now_ns,
                 struct channel **ret_channel);

/* The channel of the session's tenant with this id. NULL: there is none. */
struct channel *channel_find(const struct core *core, const struct tenant *tenant, uint64_t id);

/* Whether the channel has such a place, or any consumer's is meant. */
bool channel_has_place(const struct channel *channel, uint32_t place);

/* The place that a session which wants `place`, one that the channel has, can have now, or -1. Of any consumer's, one that
 * holds elements comes first. */
int channel_free_place(const struct channel *channel, uint32_t place);

/* A session takes a place that is free. */
void channel_take(struct channel *channel, unsigned place, struct session *session);

/* The session that is in the place leaves it, is lost, or is gone. */
void channel_leave(struct channel_place *place);
void channel_lose(struct channel_place *place);
void channel_vacate(struct channel_place *place);

/* The maker's session is gone. */
void channel_lose_maker(struct channel *channel);

/* The name does not stand for it any more. */
void channel_end(struct channel *channel);

/* Frees it if it has ended, or nothing keeps it. Its name stands for nothing then: returns the name, which the caller
 * serves, or NULL. */
struct name *channel_drop_if_unused(struct channel *channel);

/* Frees it, whatever is in its places. Its name stands for nothing then: the caller serves it. */
void channel_free(struct channel *channel);

/* Whether a session has a place in it. */
bool channel_has_member(const struct channel *channel, const struct session *session);

/* Fills in a line of the list of names, but for the name. */
void channel_list(const struct channel *channel, struct proto_listed_name *ret_listed);

/* Fills in what a session is told that has taken a place. */
void channel_describe(const struct channel *channel, uint32_t place, struct proto_channel_reply *ret_reply);

/* For heir.h. Makes a channel as a predecessor's: wanted, its places without sessions. token: of its parcel.
 * Returns 0, -ENOMEM, or -EBADMSG: another one has the token. */
int channel_restore(const struct channel *wanted, struct block *block, const struct proto_token *token,
                    struct channel **ret_channel);

/* Whether all channels are in order. */
bool channels_are_valid(const struct core *core);

#endif
