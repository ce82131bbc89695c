/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/connection.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/daemon.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/log.h"
#include "daemon/loop/peer.h"
#include "daemon/data/requests.h"
#include "daemon/loop/rights.h"

/* Broken packets that the log is told of between two rounds of housekeeping. */
#define COMPLAINTS_MAX 20u

static void connection_on_ready(uv_poll_t *poll, int status, int events);
static void connection_note_gpu_work(struct connection *connection);
static void connection_end(struct connection *connection, const char *why);
static void connection_on_process_over(struct connection *connection);

static void connection_watch(struct connection *connection) {
    /* While replies are kept nothing more is read, or a client could make us keep ever more; except for the
     * OPENED that lets them go. */
    bool stuck = outbox_is_stuck(&connection->outbox);
    bool writable = stuck && !connection->outbox.stalled;
    int mask = (stuck ? 0 : UV_READABLE) | (writable ? UV_WRITABLE : 0) | UV_DISCONNECT;

    if (connection->parked || connection->hung_up)
        return;
    if (mask != connection->watching) { /* uv_poll_start costs two epoll calls even when nothing changes */
        connection->watching = mask;
        uv_poll_start(&connection->poll, mask, connection_on_ready);
    }
}

/* The loop looks at the socket no more, which would be reported again and again: the connection keeps its
 * place among those that wait until its socket is found empty. */
static void connection_park(struct connection *connection) {
    uv_poll_stop(&connection->poll);
    connection->watching = 0;
    connection->parked = true;
}

static void connection_unpark(struct connection *connection) {
    connection->parked = false;
    connection_watch(connection);
}

/* Without a session it gets no answer, because its user has left too many of them unread. */
static bool is_crowded_out(const struct connection *connection) {
    return connection->session == NULL &&
           lingering_is_crowded(&connection->daemon->lingering, connection->peer.uid);
}

int connection_send(struct connection *connection, const struct proto_message *message, int fd) {
    if (is_crowded_out(connection))
        return -EDQUOT;
    int r = outbox_send(&connection->outbox, connection->session, message, fd);
    if (r == -EDQUOT)
        log_info("pid %d (%s): processes of user %u do not read their replies, of which the quota keeps no "
                 "more; its "
                 "session ends",
                 (int)connection->peer.pid, connection->peer.command, (unsigned)connection->peer.uid);
    return r;
}

int connection_reject(struct connection *connection, uint64_t request, enum proto_error error,
                      const char *reason) {
    struct proto_message message;

    message.header = (struct proto_header){.operation = PROTO_ERROR, .request = request};
    proto_failure_set(&message.failure, error, "%s; the session ends", reason);
    int r = is_crowded_out(connection) ? -EDQUOT : outbox_send_last(&connection->outbox, &message);
    if (connection->daemon->n_complaints++ < COMPLAINTS_MAX) /* a flood is not to flood the log too */
        log_info("pid %d (%s) sent a packet that does not check out: %s; its session ends%s",
                 (int)connection->peer.pid, connection->peer.command, reason,
                 r < 0 ? ", and it could not be told why" : "");
    return -EPROTO;
}

void connection_retry(struct connection *connection) {
    if (outbox_flush(&connection->outbox, connection->session) < 0)
        connection_end(connection, "closed its socket");
    else
        connection_watch(connection);
}

/* What is told of the process's end is worth something only from when it was given memory on. */
void connection_lend_segment(struct connection *connection, bool is_device) {
    bool first = connection->session->n_segments == 1, was_lent = connection->device_lent;

    connection->device_lent |= is_device;
    connection_note_gpu_work(connection);
    if ((first || (is_device && !was_lent)) && !connection->reaping.facts.no_gpu_work)
        reaper_watch(&connection->daemon->reaper, &connection->reaping);
}

void connection_ask_reclaim(struct connection *connection) {
    static const struct itimerspec at_once = {.it_value = {.tv_nsec = 1}};
    if (timerfd_settime(connection->reclaim_fd, 0, &at_once, NULL) < 0)
        log_warning("pid %d (%s) cannot be asked for idle memory: %s", (int)connection->peer.pid,
                    connection->peer.command, strerror(errno));
}

/* --- turns --- */

/* Reads one packet and deals with it. Returns 0, -EAGAIN when there is none, or a negative errno that ends
 * the connection. */
static int connection_read(struct connection *connection, bool *ret_answered) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    const char *reason;

    ssize_t n = rights_look(connection->fd, sizeof packet);
    if (n == -EPERM)
        return connection_reject(connection, 0, PROTO_E_INVALID,
                                 "packet: with a descriptor, which clients may not send");
    if (n <= 0)
        return n == 0 ? -ECONNRESET : (int)n;
    /* MSG_TRUNC: the true length. */
    n = recv(connection->fd, packet, sizeof packet, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0)
        return errno == EINTR || errno == EAGAIN ? -EAGAIN : -errno;
    if (n == 0)
        return -ECONNRESET;
    if (proto_decode(PROTO_FROM_CLIENT, packet, (size_t)n, &message, &reason) < 0)
        return connection_reject(connection, proto_packet_request(packet, (size_t)n), PROTO_E_INVALID,
                                 reason);
    *ret_answered = request_is_answered(&message);
    int r = request_handle(connection, &message);
    return r == -EAGAIN ? -EIO : r;
}

/* One turn's worth of what came. Returns 0 when there may be more, -EAGAIN when the socket is empty or is not
 * to be read for now, or a negative errno that ends the connection. */
static int connection_serve_some(struct connection *connection) {
    bool answered = false;
    int r = 0;

    if (outbox_is_stuck(&connection->outbox)) {
        r = outbox_flush(&connection->outbox, connection->session);
        if (r < 0 || !connection->process_over)
            return r == 0 && connection->outbox.full ? -EAGAIN : r;
    }
    for (unsigned n = 0; r == 0 && !answered && n < CONNECTION_ONE_WAY_PER_TURN; n++) {
        r = connection_read(connection, &answered);
        if (r == 0 && connection->process_over && ++connection->n_last >= CONNECTION_LAST_PACKETS_MAX)
            return -ECONNRESET;
    }
    return r;
}

static void connection_serve(struct turn *turn) {
    struct connection *connection = container_of(turn, struct connection, turn);

    connection->n_reports = 0;
    if (connection->state == CONNECTION_LOST) {
        if (connection->process_over)
            connection_on_process_over(connection);
        return;
    }
    int r = connection->hung_up ? -ECONNRESET : connection_serve_some(connection);
    if (r == -EAGAIN && connection->process_over)
        r = -ECONNRESET;
    if (r < 0 && r != -EAGAIN) {
        connection_end(connection, r == -EPROTO               ? "broke the protocol"
                                   : connection->process_over ? "ended"
                                                              : "closed its socket");
    } else if (connection->process_over || (r == 0 && connection->parked)) {
        turn_wait(turn);
    } else {
        connection_unpark(connection);
    }
}

static void connection_on_ready(uv_poll_t *poll, int status, int events) {
    struct connection *connection = poll->data;

    if (status < 0) { /* libuv has stopped polling */
        connection->watching = 0;
        connection->hung_up = true;
    }
    if ((events & UV_DISCONNECT) && !(events & UV_READABLE)) { /* level triggered: would be told for ever */
        connection_park(connection);
        connection->hung_up = true;
    }
    turn_wait(&connection->turn);
    connection->n_reports++;
    bool enough = connection->n_reports >= CONNECTION_REPORTS_MAX ||
                  connection->daemon->scheduler.n_waiting > CONNECTION_CROWD;
    if (enough && !connection->hung_up)
        connection_park(connection);
}

static void connection_on_process(uv_poll_t *poll, int status, int events) {
    struct connection *connection = poll->data;
    (void)status, (void)events;

    uv_poll_stop(poll);
    connection->process_over = true;
    turn_wait(&connection->turn);
}

/* --- ends --- */

static void connection_on_closed(uv_handle_t *handle) {
    struct connection *connection = handle->data;
    if (--connection->handles > 0 || !connection->freeing)
        return;
    lingering_leave(&connection->daemon->lingering, connection->fd, connection->peer.uid);
    close_fd(connection->pidfd);
    peer_drop_groups(&connection->peer);
    free(connection);
}

static void connection_close_handle(uv_handle_t *handle) {
    if (!uv_is_closing(handle))
        uv_close(handle, connection_on_closed);
}

static void connection_stop_greeting(struct connection *connection) {
    if (connection->state != CONNECTION_GREETING)
        return;
    connection->daemon->n_handshakes--;
    if (--connection->turn.process->user->n_greeting == 0)
        connection->daemon->n_users_greeting--;
    list_remove(&connection->greeting_link);
}

/* The connection is over in every respect; its memory goes when libuv has let go of it. */
static void connection_free(struct connection *connection) {
    struct daemon *daemon = connection->daemon;

    assert(connection->session == NULL && !connection->freeing);
    connection_stop_greeting(connection);
    reaper_forget(&connection->reaping);
    turn_leave(&connection->turn);
    outbox_drop(&connection->outbox, NULL);
    connection->reclaim_fd = close_fd(connection->reclaim_fd);
    page_drop(&connection->page);
    list_remove(&connection->link);
    daemon->n_connections--;
    connection->freeing = true;
    connection_close_handle((uv_handle_t *)&connection->poll);
    if (connection->pidfd >= 0)
        connection_close_handle((uv_handle_t *)&connection->process_poll);
}

static void connection_on_socket_closed(uv_handle_t *handle) {
    struct connection *connection = handle->data;
    lingering_leave(&connection->daemon->lingering, take_fd(&connection->fd), connection->peer.uid);
    connection_on_closed(handle);
}

/* The lost session's memory is safe. */
static void connection_reap(struct connection *connection) {
    struct session *session = connection->session;

    connection->session = NULL;
    core_session_gone(session, clock_now_ns());
    connection_free(connection);
}

static void connection_note_gpu_work(struct connection *connection) {
    connection->reaping.facts.no_gpu_work = connection->daemon->reaper.no_driver ||
                                            connection->reaping.too_late ||
                                            (connection->no_gpu && !connection->device_lent);
}

enum death_rule connection_death_rule(const struct connection *connection) {
    return death_rule(&connection->reaping.facts);
}

bool connection_under_mps(const struct connection *connection) {
    return connection->reaping.facts.under_mps;
}

/* Judges a lost session by what is known of it by now. May end the connection. */
static void connection_judge(struct connection *connection) {
    if (death_judge(&connection->reaping.facts) == DEATH_SAFE)
        connection_reap(connection);
    else
        death_explain(&connection->reaping.facts, connection->peer.pid, connection->daemon->reaper.list_name,
                      connection->reason);
}

static void connection_on_facts(struct reaping *reaping) {
    struct connection *connection = container_of(reaping, struct connection, reaping);
    if (connection->state == CONNECTION_LOST)
        connection_judge(connection);
}

/* A lost session's process has ended. May end the connection. */
static void connection_on_process_over(struct connection *connection) {
    connection->reaping.facts.process_over = true;
    if (death_judge(&connection->reaping.facts) != DEATH_SAFE)
        reaper_wait(&connection->daemon->reaper, &connection->reaping);
    connection_judge(connection);
}

void connection_force(struct connection *connection) {
    assert(connection->state == CONNECTION_LOST);
    connection_reap(connection);
}

/* Closes the socket. One that a child of the ended process still has is kept, to see that child's end: the
 * last of those who can have inherited anything is often the last who has the socket. */
static void connection_leave_socket(struct connection *connection) {
    bool keep = connection->process_over && !reaper_socket_is_over(connection->fd);

    connection->reaping.facts.socket_over = !keep;
    if (!keep)
        connection->reaping.socket = -1;
    if (!uv_is_closing((uv_handle_t *)&connection->poll))
        uv_close((uv_handle_t *)&connection->poll, keep ? connection_on_closed : connection_on_socket_closed);
}

/* The socket is of no more use. What the process holds stays until it is safe. */
static void connection_end(struct connection *connection, const char *why) {
    if (connection->session == NULL) {
        connection_free(connection);
        return;
    }
    assert(connection->state == CONNECTION_OPEN);
    journal_session_is_lost(connection->daemon, connection->session, why);
    if (connection->session->n_segments == 0) {
        /* It was never given a segment: there is nothing that it could still touch, however long its process
         * lives. */
        core_session_close(connection->session, clock_now_ns());
        connection->session = NULL;
        connection_free(connection);
        return;
    }
    connection->state = CONNECTION_LOST;
    outbox_drop(&connection->outbox, connection->session);
    connection->reclaim_fd = close_fd(connection->reclaim_fd);
    core_session_lose(connection->session, clock_now_ns(), connection->reason);
    connection_leave_socket(connection);
    if (connection->process_over) {
        connection_on_process_over(connection);
        return;
    }
    /* Its process is ending, most likely: the last chance to see it in the driver's list. */
    if (!connection->reaping.facts.no_gpu_work)
        reaper_watch(&connection->daemon->reaper, &connection->reaping);
    connection_judge(connection);
}

void connection_drop_unready(struct connection *connection) {
    assert(connection->state == CONNECTION_GREETING);
    connection_free(connection);
}

void connection_discard(struct connection *connection) {
    struct session *session = connection->session;
    if (session != NULL) {
        if (session->state == SESSION_ACTIVE)
            core_session_lose(session, clock_now_ns(), connection->reason);
        core_session_gone(session, clock_now_ns());
        connection->session = NULL;
    }
    connection_free(connection);
}

/* --- beginning --- */

/* Takes a pidfd and has the loop watch it. -ESRCH when the process has ended: who has its socket since then
 * is another one, whose end would not be seen. */
static int connection_watch_process(struct connection *connection) {
    _cleanup_(close_fdp) int pidfd = -1;

    int r = peer_open_pidfd(connection->fd, connection->peer.pid, &pidfd);
    if (r == 0 && descriptors_are_short(pidfd))
        r = -EMFILE;
    if (r == 0 && poll(&(struct pollfd){.fd = pidfd, .events = POLLIN}, 1, 0) > 0)
        r = -ESRCH;
    if (r == 0)
        r = uv_poll_init(&connection->daemon->loop, &connection->process_poll, pidfd);
    if (r < 0)
        return r;
    connection->process_poll.data = connection;
    connection->reaping.pidfd = connection->pidfd = take_fd(&pidfd);
    connection->handles++;
    return uv_poll_start(&connection->process_poll, UV_READABLE, connection_on_process);
}

int connection_identify(struct connection *connection) {
    struct peer *peer = &connection->peer;

    peer_read_command(peer);
    int r = peer_read_groups(connection->fd, peer);
    if (r == 0 && connection->pidfd < 0)
        r = connection_watch_process(connection);
    if (r == -EMFILE || r == -ENFILE)
        listener_complain(&connection->daemon->data_listener);
    else if (r < 0 && r != -ESRCH)
        log_warning("a client (pid %d) was sent away: %s; its end could not be observed, so its memory "
                    "could never be "
                    "reclaimed safely",
                    (int)peer->pid, strerror(-r));
    return r;
}

void connection_greeted(struct connection *connection) {
    connection_stop_greeting(connection);
    connection->state = CONNECTION_OPEN;
    connection_note_gpu_work(connection);
}

/* Who connected and said nothing for longest makes room: of the users who have at least an equal share of
 * such connections, of which there is always one. So a user who does nothing but connect shuts out himself.
 */
bool connection_make_room(struct daemon *daemon) {
    if (daemon->n_handshakes < CONNECTION_GREETING_MAX)
        return false;
    unsigned share = daemon->n_handshakes / daemon->n_users_greeting;

    list_for_each(position, &daemon->greeting) {
        struct connection *connection = container_of(position, struct connection, greeting_link);
        if (connection->turn.process->user->n_greeting >= share) {
            connection_drop_unready(connection);
            return true;
        }
    }
    return false;
}

/* Takes an accepted socket. False: it is still the caller's. */
static bool connection_begin(struct daemon *daemon, int fd) {
    if (descriptors_are_short(fd)) {
        listener_complain(&daemon->data_listener);
        return false;
    }
    struct connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL)
        return false;
    if (peer_identify(fd, &connection->peer) < 0 ||
        lingering_is_crowded(&daemon->lingering, connection->peer.uid) ||
        turn_join(&connection->turn, &daemon->scheduler, connection->peer.uid, connection->peer.pid,
                  connection_serve) < 0) {
        free(connection);
        return false;
    }
    if (uv_poll_init(&daemon->loop, &connection->poll, fd) < 0) {
        turn_leave(&connection->turn);
        free(connection);
        return false;
    }
    connection->poll.data = connection;
    connection->daemon = daemon;
    connection->fd = fd;
    connection->handles = 1;
    connection->pidfd = connection->reclaim_fd = -1;
    connection->page = PAGE_NONE;
    connection->accepted_ns = clock_now_ns();
    outbox_init(&connection->outbox, connection->fd);
    reaping_init(&connection->reaping, connection->peer.pid, connection->peer.uid, -1, connection->fd);
    connection->reaping.on_facts = connection_on_facts;
    connection->state = CONNECTION_GREETING;
    list_append(&daemon->connections, &connection->link);
    list_append(&daemon->greeting, &connection->greeting_link);
    daemon->n_connections++;
    daemon->n_handshakes++;
    if (connection->turn.process->user->n_greeting++ == 0)
        daemon->n_users_greeting++;
    if (!peer_is_remembered(connection->fd) && connection_watch_process(connection) < 0)
        connection_free(connection);
    else
        connection_watch(connection);
    return true;
}

void connection_accept(struct daemon *daemon, int fd) {
    if (!connection_begin(daemon, fd))
        rights_close(daemon->closer, fd);
}

void connection_send_answer(struct connection *connection, const struct answer *answer) {
    int r;
    if (connection->state != CONNECTION_OPEN)
        return;
    if (answer->lease != NULL) {
        r = request_send_lease(connection, answer->request, answer->lease);
    } else {
        struct proto_message message;
        message.header = (struct proto_header){.operation = PROTO_ERROR, .request = answer->request};
        message.failure = answer->failure;
        r = connection_send(connection, &message, -1);
    }
    if (r < 0)
        connection_end(connection, "did not read its replies");
    else
        connection_watch(connection);
}
