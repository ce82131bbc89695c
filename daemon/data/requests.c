/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/requests.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/core/explain.h"
#include "daemon/core/lease.h"
#include "daemon/core/pool.h"
#include "daemon/core/recorder.h"
#include "daemon/core/session.h"
#include "daemon/core/tenant.h"
#include "daemon/data/channel_requests.h"
#include "daemon/data/client.h"
#include "daemon/data/clients.h"
#include "daemon/data/name_requests.h"
#include "daemon/data/reply.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/identity.h"
#include "daemon/loop/log.h"
#include "daemon/loop/peer.h"
#include "daemon/supply/backing.h"
#include "daemon/supply/pools.h"

/* Sends a LEASE whose body is filled in, with the descriptor of its segment if it describes one. is_new: it
 * is the first one in the session that lies there. */
static int send_described(struct client *client, struct proto_message *message, const struct segment *segment,
                          bool is_new) {
    const struct backing *backing = segment->backing;
    int fd = -1;

    if (is_new)
        client_lend_segment(client, backing_needs_driver(backing));
    if (message->lease.description.id != 0)
        fd = backing_describe(backing, &message->lease.description);
    return client_send(client, message, fd);
}

/* Sends a lease, with its segment's description and descriptor the first time. */
static int send_lease(struct client *client, uint64_t request, struct lease *lease) {
    struct proto_message message;
    bool describe;

    reply_begin(&message, PROTO_LEASE, request);
    core_describe_lease(lease, &message.lease, &describe);
    return send_described(client, &message, lease->block->segment, describe);
}

/* Enters leases from *lease on into a message, those whose segments are new to the session first. *lease
 * moves behind them. */
static void fill_leases(struct client *client, const struct answer *answer, struct lease **lease,
                        struct proto_leases *leases, int fds[static OUTBOX_FDS_MAX]) {
    struct proto_segment_lease known[PROTO_LEASES_PER_MESSAGE] = {0};
    struct proto_segment description;
    uint32_t n_known = 0;

    for (; *lease != NULL && leases->count < PROTO_LEASES_PER_MESSAGE && leases->n_described < OUTBOX_FDS_MAX;
         *lease = core_answer_next(answer, *lease)) {
        const struct segment *segment = (*lease)->block->segment;
        struct proto_lease lent;
        bool describe;
        core_describe_lease(*lease, &lent, &describe);
        const struct proto_segment_lease entry = {lent.lease, lent.generation, lent.segment};
        if (describe) {
            client_lend_segment(client, backing_needs_driver(segment->backing));
            fds[leases->n_described] = backing_describe(segment->backing, &description);
            leases->leases[leases->n_described++] = entry;
        } else {
            known[n_known++] = entry;
        }
        leases->pool = segment->pool->id;
        leases->segment_bytes = segment->size_bytes;
        leases->count++;
    }
    memcpy(&leases->leases[leases->n_described], known, n_known * sizeof *known);
}

/* Sends the leases of a request for segments, in as many messages as it takes. */
static int send_leases(struct client *client, const struct answer *answer) {
    struct lease *lease = answer->lease;
    struct outbox *outbox = &client->connection.outbox;
    uint32_t n_left = answer->n_leases;
    bool are_several = n_left > OUTBOX_FDS_MAX;
    int r = 0;

    if (are_several) /* the request is over with its first message: a successor has to know the others */
        outbox_hold(outbox);
    while (r == 0 && lease != NULL) {
        int fds[OUTBOX_FDS_MAX];
        struct proto_message message;
        reply_begin(&message, PROTO_LEASES, answer->request);
        message.leases = (struct proto_leases){0};
        fill_leases(client, answer, &lease, &message.leases, fds);
        n_left -= message.leases.count;
        message.leases.n_left = n_left;
        r = client_send_fds(client, &message, fds, message.leases.n_described);
    }
    return r == 0 && are_several ? outbox_flush(outbox, client->session) : r;
}

int request_send_answer(struct client *client, const struct answer *answer) {
    struct proto_message message;

    if (answer->lease != NULL && answer->is_of_segments)
        return send_leases(client, answer);
    if (answer->lease != NULL)
        return send_lease(client, answer->request, answer->lease);
    reply_begin(&message, PROTO_ERROR, answer->request);
    message.failure = answer->failure;
    return client_send(client, &message, -1);
}

/* Takes the client's wish to be asked for idle memory. Without a descriptor it is not asked, and that is all.
 */
static void want_reclaim(struct client *client) {
    client->reclaim_fd = descriptors_for_client(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (client->reclaim_fd < 0) {
        log_warning(
            "pid %d (%s) cannot be asked for idle memory: %s; raise LimitNOFILE or lower sessions_limit",
            (int)client->peer.pid, client->peer.command, strerror(errno));
        return;
    }
    core_session_want_reclaim(client->session);
}

/* Fills in the HELLO_REPLY for the session with this number; 0: the answer to QUESTION. */
static void introduce(const struct clients *clients, uint16_t version, uint64_t session,
                      struct proto_hello_reply *ret_reply) {
    const struct identity *identity = clients->terms.identity;

    *ret_reply = (struct proto_hello_reply){
        .magic = PROTO_MAGIC,
        .version = version,
        .gpu = (uint16_t)clients->terms.machine->gpu_kind,
        .session = session,
        .daemon_pid = (uint32_t)getpid(),
    };
    memcpy(ret_reply->identity, identity->bytes, sizeof identity->bytes);
    memcpy(ret_reply->admin_path, identity->admin_path, sizeof identity->admin_path);
}

static int open_session(struct client *client, const struct proto_message *message) {
    struct clients *clients = client->clients;
    struct lingering *lingering = clients->terms.lingering;
    struct core *core = clients->terms.core;
    struct proto_message reply;

    reply_begin(&reply, PROTO_HELLO_REPLY, message->header.request);
    if (message->hello.version_min > PROTO_VERSION_MAX || message->hello.version_max < PROTO_VERSION_MIN) {
        reply_error(client, message->header.request, PROTO_E_VERSION,
                    message->hello.version_min > PROTO_VERSION_MAX
                        ? "the client library is newer than the daemon: update gpupoold"
                        : "the client library is older than the daemon: update libgpupool-client");
        return -EPROTO;
    }
    if (clients->stopping) {
        reply_error(client, message->header.request, PROTO_E_SHUTDOWN, "the daemon is stopping");
        return -ESHUTDOWN;
    }
    uint16_t version =
        message->hello.version_max < PROTO_VERSION_MAX ? message->hello.version_max : PROTO_VERSION_MAX;
    if ((message->hello.flags & PROTO_HELLO_QUESTION) != 0) {
        log_debug("pid %d asks which daemon this is", (int)client->peer.pid);
        introduce(clients, version, 0, &reply.hello_reply);
        int r = client_send(client, &reply, -1);
        return r < 0 ? r : -ESHUTDOWN;
    }
    if (peer_is_unmapped(&client->peer)) {
        reply_error(
            client, message->header.request, PROTO_E_DRIVER,
            "the daemon runs in a user namespace in which this process's user has no number, and cannot "
            "tell it from other such users: add the user to the namespace's uid_map (newuidmap), or run "
            "the daemon outside");
        return -EPERM;
    }
    if (client->is_shut_out) {
        struct proto_failure failure;
        struct peer peer = client->peer;
        peer.scope = client->scope;
        core_session_refused(core);
        core_explain_sessions(core, &peer, &failure);
        session_log_session_refused(&clients->log, core, &client->peer, failure.text);
        reply_error(client, message->header.request, failure.error, failure.text);
        return -EPERM;
    }
    int r = PROTO_E_LIMIT;
    if (lingering_has_room(lingering, peer_tenant(&client->peer))) {
        r = client_identify(client);
        if (r < 0)
            return r;
        r = core_session_open(core, &client->peer, clock_now_ns(), &client->session);
        if (r == PROTO_E_LIMIT && lingering_look(lingering, peer_tenant(&client->peer)) > 0)
            r = core_session_open(core, &client->peer, clock_now_ns(), &client->session);
    } else { /* a user that never reads can have a refusal with each connection: it is to cost little */
        core_session_refused(core);
    }
    if (r != 0) {
        struct proto_failure failure;
        if (r > 0)
            core_explain_sessions(core, &client->peer, &failure);
        if (r > 0)
            session_log_session_refused(&clients->log, core, &client->peer, failure.text);
        reply_error(client, message->header.request, r > 0 ? failure.error : PROTO_E_NO_MEMORY,
                    r > 0 ? failure.text : "the daemon has no memory for its bookkeeping");
        return r > 0 ? -EUSERS : r;
    }
    client->session->owner = client;
    if (message->hello.flags & PROTO_HELLO_RECLAIM)
        want_reclaim(client);
    client->no_gpu = (message->hello.flags & PROTO_HELLO_NO_GPU) != 0;
    client->version = version;
    r = client_greeted(client);
    if (r < 0)
        return r;
    session_log_session_begins(&clients->log, client->session);
    clients->served = true;
    introduce(clients, version, client->session->id, &reply.hello_reply);
    reply.hello_reply.flags = client->reclaim_fd >= 0 ? PROTO_HELLO_REPLY_EVENTFD : 0;
    return client_send(client, &reply, client->reclaim_fd);
}

/* As reply_conclude(), where the answer is a lease. */
static int conclude_with_lease(struct client *client, const struct proto_message *message, int r,
                               struct lease *lease) {
    return r != 0 ? reply_refuse(client, message->header.request, r)
                  : send_lease(client, message->header.request, lease);
}

/* --- a function for each message of a client's; messages.def has their names --- */

static int handle_list_pools(struct client *client, const struct proto_message *message) {
    struct core *core = client->clients->terms.core;
    struct proto_message reply;
    struct proto_pools *pools = &reply.pools;

    core_poll_fences(core);
    pools->count = 0;
    pools->reserved = 0;
    for (unsigned i = 0; i < core->n_pools; i++) {
        const struct pool *pool = core->pools[i];
        if (!session_may_use(client->session, pool))
            continue;
        struct proto_pool *wire = &pools->pools[pools->count++];
        *wire = (struct proto_pool){
            .id = pool->id,
            .kind = (uint16_t)pool->kind,
            .flags = pool_has_rows(pool) ? PROTO_POOL_VMM : 0,
            .device = pool->device,
            .numa_node = pool->numa_node,
            .limit_bytes = pool->limit_bytes,
            .reserved_bytes = pool->reserved_bytes,
            .leased_bytes = pool->leased_bytes,
            .free_bytes = pool_free_bytes(pool),
            .quarantined_bytes = pool->quarantined_bytes,
            .largest_free_bytes = pool_largest_free_bytes(pool),
        };
        memcpy(wire->uuid, pool->uuid, sizeof wire->uuid);
        memcpy(wire->name, pool->name, sizeof wire->name);
    }
    return reply_conclude(client, message, 0, &reply);
}

/* SHARE and SEND. */
static int give_token(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    struct proto_token fresh[2];
    struct lease *lease = NULL;

    if (getrandom(fresh, sizeof fresh, 0) != (ssize_t)sizeof fresh)
        return reply_error(client, message->header.request, PROTO_E_DRIVER,
                           "the kernel gave no random bytes");
    int r = message->header.operation == PROTO_SHARE ? core_share(client->session, &message->share, &fresh[0],
                                                                  clock_now_ns(), &lease, &reply.token.token)
                                                     : core_send(client->session, &message->send, fresh,
                                                                 clock_now_ns(), &lease, &reply.token.token);
    if (r == PROTO_E_LIMIT && client->session->tenant->n_parcels >= PARCELS_MAX)
        return reply_error(
            client, message->header.request, r,
            "65,536 buffers of this user were sent and not taken yet, which is as many as may be: "
            "take or revoke some");
    if (r == 0) {
        reply.token.lease = lease->id;
        reply.token.generation = lease->generation;
    }
    return reply_conclude(client, message, r, &reply);
}
_Static_assert(PARCELS_MAX == 65536, "the text above names it");

/* Ends the session of a client whose one-way message was refused. what: a field of the message, and what is
 * wrong. */
static int refuse_one_way(struct client *client, const char *what, int error) {
    char reason[PROTO_TEXT_MAX / 2];

    snprintf(reason, sizeof reason, "%s, one-way: %s", what, proto_error_text((unsigned)error));
    return client_reject(client, 0, (enum proto_error)error, reason);
}

/* The client does not hear that a one-way release was refused, and what it meant stays its own. */
static int release_one_way(struct client *client, const struct proto_message *message) {
    int r = core_release_one_way(client->session, &message->release, clock_now_ns());

    if (r == -ENOMEM)
        log_warning("there is no memory to note a release of pid %d (%s): its session has it to its end",
                    (int)client->peer.pid, client->peer.command);
    else if (r != 0)
        log_debug("pid %d (%s) released what it may not, or what could not be divided: %s",
                  (int)client->peer.pid, client->peer.command,
                  r > 0 ? proto_error_text((unsigned)r) : strerror(-r));
    return 0;
}

/* The client does not hear that a one-way merge was refused, and goes on as if it had been done. */
static int merge_one_way(struct client *client, const struct proto_message *message) {
    int r = core_merge_one_way(client->session, &message->merge);

    return r <= 0 ? r : refuse_one_way(client, "MERGE.other_lease: cannot become part of the lease", r);
}

/* Refuses what the kernel gave the daemon no memory or no descriptor for. */
static int refuse_memory(struct client *client, uint64_t request, int error, const char *what) {
    char text[PROTO_TEXT_MAX / 2];

    snprintf(text, sizeof text, "the daemon cannot make %s: %s (%s)%s", what, strerrorname_np(-error),
             strerrordesc_np(-error),
             error == -EMFILE ? ": its descriptors are in use; raise LimitNOFILE or lower sessions_limit"
             : error == -ENOBUFS
                 ? ": the service manager stores no more descriptors; raise FileDescriptorStoreMax"
                 : "");
    return reply_error(client, request, PROTO_E_DRIVER, text);
}

/* Refuses to send a descriptor once more, while an earlier one may be unread: the kernel counts those. */
static int refuse_until_read(struct client *client, uint64_t request) {
    return reply_error(client, request, PROTO_E_EXHAUSTED,
                       "this was sent before, and replies are unread: read them, and ask again");
}

static int handle_ask_page(struct client *client, const struct proto_message *message) {
    struct proto_message reply;

    if (client->page.memory != NULL && !outbox_is_read(&client->connection.outbox))
        return refuse_until_read(client, message->header.request);
    int r = client->page.memory == NULL ? client_make_page(client) : 0;
    if (r < 0)
        return refuse_memory(client, message->header.request, r, "the session's page");
    reply_begin(&reply, PROTO_PAGE, message->header.request);
    reply.page = (struct proto_page_reply){.size_bytes = PROTO_PAGE_BYTES};
    return client_send(client, &reply, client->page.fd);
}

static int handle_ask_board(struct client *client, const struct proto_message *message) {
    struct proto_message reply;

    if (client->board != NULL && !outbox_is_read(&client->connection.outbox))
        return refuse_until_read(client, message->header.request);
    int r = client->board == NULL ? client_join_board(client) : 0;
    if (r == -ENOSPC)
        return reply_error(client, message->header.request, PROTO_E_LIMIT,
                           "1,024 sessions of this user have fences that others wait for: more have none");
    if (r < 0)
        return refuse_memory(client, message->header.request, r, "the user's board");
    reply_begin(&reply, PROTO_BOARD, message->header.request);
    reply.board = (struct proto_board_reply){.size_bytes = PROTO_BOARD_BYTES, .slot = client->board_slot};
    return client_send(client, &reply, client->board->fd);
}

static int handle_ask_alive(struct client *client, const struct proto_message *message) {
    struct proto_message reply;

    if (client->was_sent_alive && !outbox_is_read(&client->connection.outbox))
        return refuse_until_read(client, message->header.request);
    int fd = alive_need(&client->clients->alive);
    if (fd < 0)
        return refuse_memory(client, message->header.request, fd, "a pipe");
    client->was_sent_alive = true;
    reply_begin(&reply, PROTO_ALIVE, message->header.request);
    return client_send(client, &reply, fd);
}

static int handle_bye(struct client *client, const struct proto_message *message) {
    session_log_session_leaves(&client->clients->log, client->session);
    core_session_close(client->session, clock_now_ns());
    client_said_farewell(client);
    struct proto_message reply;
    reply_begin(&reply, PROTO_OK, message->header.request);
    (void)client_send(client, &reply, -1);
    return -ESHUTDOWN; /* a socket that is closed still delivers what was sent */
}

static int handle_describe(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    struct segment *segment;
    bool describe;

    reply_begin(&reply, PROTO_LEASE, message->header.request);
    int r = core_describe_part(client->session, &message->describe, &reply.lease, &segment, &describe);
    return r != 0 ? reply_refuse(client, message->header.request, r)
                  : send_described(client, &reply, segment, describe);
}

static int handle_hello(struct client *client, const struct proto_message *message) {
    return client_reject(client, message->header.request, PROTO_E_INVALID,
                         "header.operation: a second HELLO");
}

static int handle_acquire(struct client *client, const struct proto_message *message) {
    uint64_t request = message->header.request;
    int r = core_acquire(client->session, request, &message->acquire, clock_now_ns());
    return r == 0 ? 0 : reply_refuse(client, request, r);
}

static int handle_acquire_segments(struct client *client, const struct proto_message *message) {
    uint64_t request = message->header.request;
    int r = core_acquire_segments(client->session, request, &message->acquire_segments, clock_now_ns());
    return r == 0 ? 0 : reply_refuse(client, request, r);
}

static int handle_cancel(struct client *client, const struct proto_message *message) {
    core_cancel(client->session, message->cancel.request, clock_now_ns());
    return 0;
}

static int handle_reclaimed(struct client *client, const struct proto_message *message) {
    int r = core_reclaimed(client->session, &message->reclaimed, clock_now_ns());
    if (r == 0)
        return 0;
    return refuse_one_way(client,
                          r == PROTO_E_NO_POOL ? "RECLAIMED.pool: none of this id"
                                               : "RECLAIMED.asked: the session was not asked so often",
                          r);
}

static int handle_name(struct client *client, const struct proto_message *message) {
    core_session_name(client->session, message->name.name, clock_now_ns());
    client->peer = client->session->peer;
    return 0;
}

static int handle_release(struct client *client, const struct proto_message *message) {
    struct proto_message reply;

    if (message->header.request == 0)
        return release_one_way(client, message);
    return reply_conclude(client, message, core_release(client->session, &message->release, clock_now_ns()),
                          &reply);
}

static int handle_split(struct client *client, const struct proto_message *message) {
    struct lease *lease = NULL;

    int r = core_split(client->session, &message->split, &lease);
    return conclude_with_lease(client, message, r, lease);
}

static int handle_merge(struct client *client, const struct proto_message *message) {
    struct proto_message reply;

    if (message->header.request == 0)
        return merge_one_way(client, message);
    return reply_conclude(client, message, core_merge(client->session, &message->merge), &reply);
}

static int handle_share(struct client *client, const struct proto_message *message) {
    return give_token(client, message);
}

static int handle_send(struct client *client, const struct proto_message *message) {
    return give_token(client, message);
}

static int handle_revoke(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    return reply_conclude(client, message, core_revoke(client->session, &message->revoke, clock_now_ns()),
                          &reply);
}

static int handle_attach(struct client *client, const struct proto_message *message) {
    struct lease *lease = NULL;

    recorder_set_time(client->session->core, clock_now_ns());
    int r = core_attach(client->session, &message->attach, &lease);
    return conclude_with_lease(client, message, r, lease);
}

static int handle_query(struct client *client, const struct proto_message *message) {
    struct proto_message reply;

    int r = core_query(client->session, &message->query, &reply.info);
    return reply_conclude(client, message, r, &reply);
}

static int handle_ask_holders(struct client *client, const struct proto_message *message) {
    struct proto_message reply;

    int r = core_ask_holders(client->session, &message->ask_holders, &reply.holders);
    return reply_conclude(client, message, r, &reply);
}

static int handle_ask_parts(struct client *client, const struct proto_message *message) {
    struct proto_message reply;

    int r = core_ask_parts(client->session, &message->ask_parts, &reply.parts);
    return reply_conclude(client, message, r, &reply);
}

static int handle_idle(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    int r = core_idle(client->session, &message->idle, clock_now_ns(), &reply.segments);
    return reply_conclude(client, message, r, &reply);
}

static int handle_offer(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    int r = core_offer(client->session, &message->offer, clock_now_ns(), &reply.segments);
    return reply_conclude(client, message, r, &reply);
}

static int handle_closed(struct client *client, const struct proto_message *message) {
    struct proto_message reply;
    /* A client that has not read which segment it was given can only guess what to close. */
    int r = outbox_keeps_segment(&client->connection.outbox, message->closed.segment)
                ? PROTO_E_INVALID
                : core_closed(client->session, &message->closed, clock_now_ns());
    return reply_conclude(client, message, r, &reply);
}

static int handle_opened(struct client *client, const struct proto_message *message) {
    struct outbox *outbox = &client->connection.outbox;

    if (outbox->awaited_segment == 0 || message->opened.segment != outbox->awaited_segment)
        return client_reject(client, 0, PROTO_E_INVALID,
                             "OPENED.segment: not one whose descriptor was sent and is not opened yet");
    outbox_opened(outbox);
    return outbox_flush(outbox, client->session);
}

typedef int request_handler(struct client *client, const struct proto_message *message);

/* proto_decode() lets nothing of the daemon's pass. */
#define HANDLER_OF_CLIENT(member) handle_##member
#define HANDLER_OF_DAEMON(member) NULL
static request_handler *const handlers[] = {
#define PROTO_MESSAGE(name, number, sender, request, reply, descriptors, member, type)                       \
    [PROTO_##name] = HANDLER_OF_##sender(member),
#include "proto/messages.def"
};

/* The first version of the wire format that has a client's message. */
static unsigned first_version(unsigned operation) {
    return operation == PROTO_ASK_ALIVE                                          ? PROTO_VERSION_RESTARTS
           : operation >= PROTO_WRITE_DIRECTORY && operation <= PROTO_ASK_CHANNEL_MEMORY ? PROTO_VERSION_NAMES
                                                                                 : PROTO_VERSION_MIN;
}

int request_handle(struct client *client, const struct proto_message *message) {
    if (client->state != CLIENT_GREETING) {
        core_session_heard(client->session);
        return client->version >= first_version(message->header.operation)
                   ? handlers[message->header.operation](client, message)
                   : client_reject(client, message->header.request, PROTO_E_INVALID,
                                   "header.operation: unknown");
    }
    return message->header.operation == PROTO_HELLO
               ? open_session(client, message)
               : client_reject(client, message->header.request, PROTO_E_INVALID,
                               "header.operation: not HELLO in the first message of a session");
}
