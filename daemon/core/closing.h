/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_CLOSING_H
#define DAEMON_CORE_CLOSING_H
/*
 * Segments that processes are told to close, so that they go back to the driver and others come in their
 * place.
 *
 * Closing a legacy mapping waits for all work of the closing process on the device, and its other threads
 * launch nothing meanwhile; so does unregistering host memory (measured on H200: 100 ms beside a kernel of
 * 100 ms). So it is the last resort, for a request that would otherwise be refused, or wait without end: the
 * pool is at its limit, or its driver refuses, and no range that is free serves. Then as much is named as the
 * request lacks:
 *
 * - to a session that has no work on the GPU at once;
 * - to one that says that it is busy only when every other session that can be asked has answered and the
 * request still lacks memory, or when the sessions were asked a second time.
 *
 * A CLOSING segment is nobody's, and nothing is lent in it again, so nobody can come between a session's
 * closing it and its saying so. Each session that has it mapped is told once; when the last has closed it, it
 * is retired. A session that never says so keeps it reserved (closing_bytes) until its end; growth for others
 * does not wait for it. Until then it is charged to its tenant: otherwise a client could bind any number of
 * bytes so, and wait in a wait queue as if it had nothing. A segment is not closed while a session has it
 * mapped that cannot be asked, unless that session itself asks what to close for its own request.
 */
#include <stdbool.h>
#include <stdint.h>

struct pool;
struct proto_idle;
struct proto_segments;
struct segment;
struct session;

/* Answers an IDLE: names segments that the session has to close for its own request, or for those that wait.
 * Where one message does not hold them all, the session asks again. ret_segments is empty before. */
void closing_choose(struct session *session, struct pool *pool, const struct proto_idle *idle,
                    uint64_t now_ns, struct proto_segments *ret_segments);

/* The session has closed a CLOSING segment that it was told to close. Returns its pool, or NULL: there is no
 * such segment. */
struct pool *closing_finish(struct session *session, uint64_t segment_id);

/* The last mapper of a CLOSING segment has closed it or is gone. */
void closing_end(struct segment *segment);

#endif
