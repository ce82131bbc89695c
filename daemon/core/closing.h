/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_CLOSING_H
#define DAEMON_CORE_CLOSING_H
/*
 * Closing: processes are told to close segments, so that these go back to the driver and the pool can make
 * others in their place.
 *
 * Closing a legacy mapping waits for all work of the closing process on the device, and its other threads
 * launch nothing meanwhile; so does unregistering host memory (measured on H200: 100 ms beside a kernel of
 * 100 ms). So closing is the last resort, for a request that would otherwise be refused, or wait without end:
 * the pool is at its limit, or its driver refuses, and no free range serves. Then the core names as many
 * segments as the request lacks:
 *
 * - to a session that has no work on the GPU, or where the pool's segments are descriptors (closing a mapping
 *   of these waits for nothing: 40 to 60 us beside kernels): at once;
 * - to another session that says that it is busy: when every other session that can be asked has answered and
 * the request still lacks memory, or when the sessions were asked a second time.
 *
 * A CLOSING segment belongs to no tenant, and no range of it is leased again, so no lease can come between a
 * session's closing it and its saying so. Each session that has it mapped is told once. When the last one has
 * closed it, it is retired. A session that never says so keeps it reserved (closing_bytes) until the session
 * ends; growth for other requests does not wait for it. Until then the segment is charged to its former
 * tenant: otherwise a client could bind any number of bytes so, and wait in a wait queue as if it had
 * nothing. Two kinds of segments are not closed:
 *   - A segment that a deaf session has mapped, one that cannot be asked. Such a session still closes its
 *     segments for a request of its own.
 *   - A segment that the oldest waiting request could take as it is (plan_needs_segment).
 *
 * A session may also offer segments that it has given back and does not use any more (OFFER), of pools where
 * closing stops no work. These have a keeper: the tenant, which has them again when they are closed. No
 * request waits for that: other sessions close segments as if a session that offered some would never close
 * them. The tenant lives as long as the segment is CLOSING, because the session that has it mapped does.
 */
#include "daemon/core/types.h"

/* Answers an IDLE: names segments that the session has to close, for its own request or for waiting ones.
 * Where one message does not hold them all, the session asks again. ret_segments is empty before. */
void closing_choose(struct session *session, struct pool *pool, const struct proto_idle *idle,
                    uint64_t now_ns, struct proto_segments *ret_segments);

/* Answers an OFFER: names those of the segments of which nothing is taken and that no other session has
 * mapped, unless requests wait, or the last request that was refused could take the segment as it is. They
 * are the tenant's again when the session has closed them, and can then be retired for any tenant without a
 * question to a session. ret_segments is empty before. */
void closing_take_offer(struct session *session, struct pool *pool, const struct proto_offer *offer,
                        struct proto_segments *ret_segments);

/* The session has closed a CLOSING segment that it was told to close. Returns its pool, or NULL: there is no
 * such segment. */
struct pool *closing_finish(struct session *session, uint64_t segment_id);

/* The session does not map the segment any more. A CLOSING segment is retired with its last mapper, or is its
 * keeper's again. */
void closing_unmap(struct session *session, struct segment *segment);

/* For heir.h. The segment, which its tenant owns and sessions have mapped, is CLOSING; keeper: NULL: it is
 * retired afterwards. Then: the session was told to close it. */
void closing_restore(struct segment *segment, struct tenant *keeper);
void closing_restore_told(struct session *session, struct segment *segment);

#endif
