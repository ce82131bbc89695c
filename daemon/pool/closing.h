/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_POOL_CLOSING_H
#define DAEMON_POOL_CLOSING_H
/*
 * Segments that the only process which has them mapped is told to close, so that they can go back to the
 * driver and others come in their place. A program whose sizes change leaves idle segments behind that its
 * next request does not fit into: without this a pool's memory is the sum of what its user needed at
 * different times.
 *
 * Before growth, for the session that wants more, as much as would be grown by; and for others, when nothing
 * but that makes room for the first in line (pool.h: stuck), by those that are asked for what they keep idle,
 * as much as that one lacks: memory that nobody uses is in nobody's way, in whatever pieces it lies. A
 * segment that is CLOSING is nobody's, and nothing is lent in it again, so nobody can come between the
 * session's closing it and its saying so. A session that never says so keeps it reserved (closing_bytes)
 * until its end; growth for others does not wait for it. Until then it is charged to the session's tenant:
 * otherwise a client could bind any number of bytes so, and wait in line as if it had nothing.
 *
 * Host pools only for others: making host memory takes a hundred times as long as to keep it would cost.
 */
#include <stdbool.h>
#include <stdint.h>

struct pool;
struct proto_segments;
struct segment;
struct session;

/* Makes idle segments of the session CLOSING, if what it is about to ask for would make the pool grow: those
 * that leave the least behind, up to what it would grow by, and never below the pool's reserve. Where one
 * message does not hold them all, the session asks again. ret_segments is empty before. / The same for those
 * that wait. */
void closing_choose(struct session *session, struct pool *pool, uint64_t size_bytes,
                    struct proto_segments *ret_segments);
void closing_choose_for_others(struct session *session, struct pool *pool,
                               struct proto_segments *ret_segments);

/* The session has closed a CLOSING segment of its own, which is retired. Returns its pool, or NULL: there is
 * no such segment. */
struct pool *closing_finish(struct session *session, uint64_t segment_id);

/* The last mapper of a CLOSING segment has closed it or is gone. */
void closing_end(struct segment *segment);

#endif
