/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_EDITION_H
#define DAEMON_CORE_EDITION_H
/*
 * An edition: a set of blocks that a session has published under a name, with a directory (bytes that the
 * daemon does not read). Its number is the *generation*. Each block is held by a parcel (parcel.h), which has
 * no takers and no deadline: the edition's end is the parcel's. Other sessions attach by the parcel's token.
 *
 *   published --replaced, or unpublished--> gone
 *   published --its publisher's session ends, and it is not KEEP--> gone
 *   published --its publisher died before its GPU work had written the contents--> gone
 *
 * Sessions that have attached keep their leases: with the last holder a block goes back to the heap.
 *
 * While the publisher's session is there, its GPU work may not be over: a part that is behind a fence names
 * it. With the session's end no part has a fence any more.
 *
 * A *draft* is the directory that a session writes. The next edition that the session publishes takes it.
 *
 * Invariants: the parts of the directory cover it, and each has a record. Its bytes are charged to the tenant
 * (QUOTA_REPLIES). So are the bytes of the blocks, if the edition is KEEP (QUOTA_KEPT).
 */
#include "daemon/core/types.h"

/* Adds a part to the session's draft, behind those that are there; a part from 0 begins anew. Returns 0,
 * PROTO_E_INVALID (it does not follow), PROTO_E_LIMIT (QUOTA_REPLIES) or -ENOMEM. */
int draft_write(struct session *session, const struct proto_directory_part *part);

void draft_drop(struct session *session);

/* Makes an edition of no name yet, of the blocks of these leases. It takes the session's draft. tokens: random,
 * fresh, one for each block to be shared and one for each parcel. The caller has checked publish, the leases and the
 * tenant's limits. Returns 0, or -ENOMEM: then some blocks may have become shared, and nothing else has changed. */
int edition_make(struct session *session, const struct proto_publish *publish, struct lease *const *leases,
                 const struct proto_token *tokens, uint64_t now_ns, struct edition **ret_edition);

/* Ends an edition, which is no name's any more. Accepts NULL. */
void edition_free(struct edition *edition);

/* The publisher's session ends, and its GPU work is over. is_done: all of that work was done. Without it, a part
 * behind a fence has its contents if the session's word on the board has reached the fence's value. Returns whether
 * all parts have their contents. */
bool edition_settle(struct edition *edition, bool is_done);

/* Fills in what a session is told that opens it. */
void edition_describe(const struct edition *edition, struct proto_named *ret_named);

/* For heir.h. Makes an edition as a predecessor's, without parcels; of its directory nothing is there yet.
 * Returns 0 or -ENOMEM. */
int edition_restore(const struct edition *wanted, struct edition **ret_edition);

/* For heir.h. All of its parcels are there: its bytes are charged. */
void edition_restored(struct edition *edition, struct tenant *tenant);

bool edition_is_valid(const struct edition *edition);

#endif
