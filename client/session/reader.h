/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_READER_H
#define CLIENT_SESSION_READER_H
/*
 * The reader of a connection: the thread that takes packets from the socket, for all threads that have
 * requests under way. The role is connection.reading. A thread takes it under the connection's lock, calls
 * reader_step() without the lock, and gives it up with reader_pass_on_locked().
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/session/connection.h"

/* Takes one packet from the socket and deals with it. Returns 0 (which may mean that the connection has
 * broken), -ETIMEDOUT, or -EINTR: a signal came, and the thread's exchanges end then. Called by the reader,
 * without the lock. */
int reader_step(struct connection *connection, uint64_t deadline_ns);

/* Wakes one sleeper to take the role, if no thread has it and one sleeps. Returns whether the role is still
 * free then. A request that is still being sent finds that by itself. */
bool reader_wake_sleeper_locked(struct connection *connection);

/* As reader_wake_sleeper_locked(). If no thread sleeps, the one that completes submitted requests is woken.
 */
void reader_pass_on_locked(struct connection *connection);

/* Makes the RELEASE of a whole lease that nothing uses. request_id: 0: one-way. */
void reader_make_release(struct proto_message *message, uint64_t lease, uint64_t generation,
                         uint64_t request_id);

/* Revokes the parcel that the reply to a SEND brought, whose token no caller gets. Takes the request, which
 * is not in a list. */
void reader_revoke(struct request *request);

#endif
