/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_SUBMIT_H
#define CLIENT_SESSION_SUBMIT_H
/*
 * Submitted requests: requests for whose replies no thread waits. One thread at a time, the *runner*, reads
 * the socket for them whenever no other thread does, and collects those that are complete.
 *
 *     fresh ──enlist──▶ waiting, unsent ──submit──▶ waiting ──reply, failure──▶ completed ──collect──▶ over
 *
 * A collected request is as it is after connection_exchange().
 *
 * A request is enlisted before it is sent, so that a thread which cancels it finds it by its id at any time:
 * the CANCEL then goes behind it in the outbox. A request whose reply comes while connection_submit() sends it
 * is completed by that call, which is the last to touch it.
 *
 * The runner waits in connection_run(), and sends what is left in the outbox meanwhile. It is woken through an
 * eventfd when a request is submitted or completed by another thread, and when the reader's role becomes free
 * while no thread sleeps.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/session/connection.h"

/* Sets the descriptor that wakes the runner: an eventfd that does not block, borrowed. Once, before the first
 * request is submitted. */
void connection_watch(struct connection *connection, int wake_fd);

/* Enters a request, which is to be sent by connection_submit(). Returns its id. deadline_ns: when it fails
 * with TIMED_OUT. owner: for the thread that collects it (request.owner). Thread-safe. */
uint64_t connection_enlist(struct request *request, uint64_t deadline_ns, void *owner);

/* Sends a request that was entered. Waits until it has left: a client without a thread of its own may have no
 * other thread that sends it. From the call on it belongs to the connection, until
 * connection_next_completed() gives it. Thread-safe. */
void connection_submit(struct request *request);

/* Tells the daemon that the request of an id is to wait no more. The request completes with the daemon's
 * answer. Does nothing if it has completed. Thread-safe. Leaves the thread's error text as it is. */
void connection_cancel(struct connection *connection, uint64_t id);

/* A request that is complete, which the caller collects. NULL: none is. For the runner. */
struct request *connection_next_completed(struct connection *connection);

/* Ends the exchange of a request that is complete: as connection_exchange() does. A reply that came after the
 * request's deadline, but before this call, is its reply. */
int connection_collect(struct request **request);

/* Waits until a request is complete, wake_fd is written, a packet has come and was dealt with, or the
 * deadline has passed. watches: or the daemon asks (connection->questions); the caller answers. Returns
 * whether anything of that but the deadline happened. For the runner. */
bool connection_run(struct connection *connection, bool watches, uint64_t deadline_ns);

/* Completes all submitted requests: they have failed with TIMED_OUT, unless they are complete. Leases that
 * come for them are given back. None is being sent. */
void connection_abandon_submitted(struct connection *connection);

/* --- for the parts of the connection --- */

/* Completes a submitted request. error: a negative errno, or 0. The connection is locked. */
void submit_complete_locked(struct request *request, int error);

/* Sends CANCEL for the request of an id. Leaves the thread's error text as it is. */
void submit_tell_cancel(struct connection *connection, uint64_t id);

/* Wakes the runner. */
void submit_wake(const struct connection *connection);

#endif
