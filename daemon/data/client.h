/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_CLIENT_H
#define DAEMON_DATA_CLIENT_H
/*
 * A client: the record of one process that has connected to the data socket. It owns the connection and the
 * session, and outlives both sockets and session until the process's memory is safe.
 *
 *   GREETING --HELLO--> OPEN --BYE--> CLOSING (the last reply is on its way) --> gone
 *   GREETING --anything else (answered by an ERROR)--> gone
 *   OPEN --end of file, error, exit; the session never had a segment--> gone
 *   OPEN --end of file, error, exit--> LOST (session in quarantine) --safe, or forced--> gone
 *
 * The rule of daemon/core/death.h says when memory is safe, from facts that daemon/death/watcher.h finds out.
 * A lost client keeps its socket where its process has ended and a child still has the other end.
 *
 * A client costs little before it says HELLO: only then does the daemon ask for its process's pidfd, name and
 * groups, which the kernel keeps since connect(). Where the kernel does not, the pidfd is taken at once.
 *
 * A client that wants to be asked for idle memory gets a timerfd, which the daemon sets off. To the client it
 * reads as an eventfd would. It is not an eventfd because all holders of a descriptor share its flags: a
 * client could take O_NONBLOCK away from an eventfd and fill it up, and the daemon's next write would block
 * the loop. Setting a timer never blocks, and a client that sets it harms itself alone.
 */
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/list.h"
#include "daemon/core/core.h"
#include "daemon/data/board.h"
#include "daemon/data/connection.h"
#include "daemon/death/watcher.h"
#include "daemon/loop/peer.h"

struct clients;
struct kept_client;
struct kept_session;

/* Clients that may be about to say HELLO at once. */
#define CLIENT_GREETING_MAX 256u

enum client_state {
    CLIENT_GREETING,
    CLIENT_OPEN,
    CLIENT_CLOSING,
    CLIENT_LOST,
};

/*
 * A session's page as the daemon has it (proto/page.h): the memfd that the client is given, and a mapping to
 * look at what the client writes. A client has one from ASK_PAGE on. The daemon takes nothing from there but
 * the client's word about its own memory, and writes nothing but which pools are short. The seals keep the
 * size, so the daemon never reads beyond the end, and pages that it has read stay in memory. After a client
 * punches holes, client and daemon read zeros.
 *
 * Invariant: fd ≥ 0 exactly when memory != NULL.
 */
struct page {
    int fd;
    struct proto_page *memory;
};

struct client {
    struct clients *clients;
    enum client_state state;
    struct connection connection;
    struct peer peer;        /* scope: the ordinary one while is_shut_out */
    uint32_t scope;          /* whose socket it came through */
    bool is_shut_out;        /* its user may not come in there: it costs the scope's users nothing */
    struct session *session; /* OPEN and LOST */
    int pidfd;
    int reclaim_fd;   /* OPEN: asks the client for idle memory; -1: it did not want that */
    struct page page; /* until the session is gone */
    struct board *board; /* NULL: the session has no slot on its user's board */
    uint32_t board_slot;
    uv_poll_t process_poll;
    unsigned handles; /* uv handles that are not closed yet */
    bool freeing;
    unsigned n_last; /* packets that were read since the process ended */
    uint16_t version; /* of the wire, as HELLO agreed on it */
    bool was_sent_alive; /* ALIVE, by this daemon */
    uint32_t record;  /* kept_data.h; 0: it is not kept */
    bool has_lost_memory; /* the daemon before had its page or board, and it was not stored */
    struct {
        char socket[STORE_NAME_SIZE], process[STORE_NAME_SIZE], page[STORE_NAME_SIZE],
            reclaim[STORE_NAME_SIZE];
    } stored; /* its descriptors, by their names in the store */
    uint64_t accepted_ns;
    bool no_gpu;      /* the client said that its process uses no GPU */
    bool driver_lent; /* it was given memory that needs the driver all the same */
    struct watched watched;
    char reason[DEATH_TEXT_SIZE]; /* LOST: why the session's memory is held; the session refers to it */
    struct list link;             /* in clients->all */
    struct list greeting_link;    /* GREETING: in clients->greeting */
};

/* Takes a socket that was accepted in a scope; serve() is called for each of its turns. Returns false when
 * it cannot: then the socket is still the caller's. */
bool client_begin(struct clients *clients, int fd, uint32_t scope, void (*serve)(struct turn *turn));

/* Takes a session of the daemon before, whose record of a client is kept (record 0: it has none). serve: as of
 * client_begin(). Nothing is served before client_resume(). Returns 0 or -ENOMEM. */
int client_inherit(struct clients *clients, struct session *session, const struct kept_session *kept_session,
                   const struct kept_client *kept, uint32_t record);

/* Has the descriptors of a client, by their names, leave the store. */
void client_leave_store(struct store *store, char *socket, char *process, char *page, char *reclaim);

/* The boards are there: finds the one of a session that has a slot. */
void client_inherit_board(struct client *client);

/* From now on the client is served, or its lost session is judged. May free the client. */
void client_resume(struct client *client);

/* Asks the kernel about the process. Returns 0, or a negative errno with which the client cannot be served
 * (logged where an operator can do something about it). */
int client_identify(struct client *client);

/* The client has said HELLO and has a session. Returns 0, or -ENOMEM: it cannot be kept. */
int client_greeted(struct client *client);

/* Makes the session's page, of zeros. Returns 0 or a negative errno. */
int client_make_page(struct client *client);

/* Gives the session a slot on its user's board. Returns 0 or a negative errno. */
int client_join_board(struct client *client);

/* The session is over in an orderly way: all of its GPU work was done. The core has closed it. */
void client_said_farewell(struct client *client);

/* The session is told of a segment for the first time. needs_driver: its process needs the driver to use it.
 */
void client_lend_segment(struct client *client, bool needs_driver);

/* The page, the timer for idle memory, or what is known of the process has changed. */
void client_changed(const struct client *client);

/* Asks the client for its idle memory. */
void client_ask_reclaim(struct client *client);

/* Sends a message, or keeps it. fd goes along, -1: none; borrowed until it has gone. Returns 0, or a negative
 * errno that ends the connection. */
int client_send(struct client *client, const struct proto_message *message, int fd);

/* As client_send(), with n_fds descriptors. */
int client_send_fds(struct client *client, const struct proto_message *message, const int *fds,
                    unsigned n_fds);

/* Sends what a stalled connection keeps, where the kernel takes it by now. May end the connection. */
void client_retry(struct client *client);

/* Ends the session because of a packet that is invalid, or invalid in this state. Tells the client by an
 * ERROR with the packet's request id (0: it has none), and the log, a few times between two rounds of
 * housekeeping. reason names the field. Returns -EPROTO for the caller to return, which ends the connection.
 */
int client_reject(struct client *client, uint64_t request, enum proto_error error, const char *reason);

/* Ends the session because an operator says so, and tells the client. Its process may live on. */
void client_dismiss(struct client *client);

/* Ends the connection; why is for the log. The session's memory stays until it is safe. Frees a client
 * that has none. */
void client_end(struct client *client, const char *why);

/* Ends a client that has not said HELLO. */
void client_drop_unready(struct client *client);

/* Whether the process has ended: its pidfd is readable. */
bool client_process_is_over(const struct client *client);

/* A lost client's process has ended. May free the client. */
void client_process_ended(struct client *client);

/* Gives a lost session's memory back although nothing shows that it is safe: an operator's decision. */
void client_force(struct client *client);

/* Frees everything at once, whatever is still leased: for the daemon's own end. */
void client_discard(struct client *client);

#endif
