/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_SCENE_H
#define TESTS_FUZZ_SCENE_H
/*
 * The scene that operations.c plays: a stage (stage.h), the memory that each client may be touching
 * (ledger.h), and the clients, which know their own requests and answers. There is one scene. A client notes
 * a message before it sends it, and holds each answer against the ledger (scene_client.c). The input decides
 * what a client asks for (scene_requests.c).
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/page.h"
#include "proto/proto.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/ledger.h"
#include "tests/fuzz/stage.h"

#define CLIENTS     6u
#define PROCESSES   6u
#define ADMINS      2u
#define USERS       3u
#define NAMES       24u  /* leases that a client remembers, to say something about */
#define TOKENS      8u   /* that anybody remembers */
#define OUTSTANDING 256u /* requests without an answer that are followed */
#define GIVEN_UP    256u

/* One end of a connection to the daemon, and what its user knows. */
struct puppet {
    int fd;          /* -1: not connected */
    unsigned number; /* of the connection: never used again */
    unsigned process;
    uint64_t last_request;
    struct proto_lease_name names[NAMES];
    uint64_t offsets[NAMES], capacities[NAMES];
    unsigned n_names;
    uint64_t unopened; /* the segment whose descriptor came */
    uint64_t closable; /* a segment that it was told to close */
    struct proto_page *page;
    bool said_bye;
    bool no_gpu; /* it said that it does no GPU work, and was given no memory of a GPU */
    /* Requests that were sent and not answered. Requests beyond the array are not counted. */
    struct {
        uint64_t request;
        unsigned operation;
    } outstanding[OUTSTANDING];
    unsigned n_outstanding;
    bool was_rejected; /* the daemon said that the session ends, and why */
    bool lost_count;
    /* Leases that the client spoke of as if they were over, perhaps before it was told that it has them. */
    struct proto_lease_name given_up[GIVEN_UP];
    unsigned n_given_up;
};

struct scene {
    struct stage *stage;
    struct ledger ledger;
    struct puppet clients[CLIENTS];
    int admins[ADMINS];
    unsigned connections;
    struct proto_token tokens[TOKENS];
    unsigned n_tokens;
    uint64_t generation; /* the last one that a client was told */
    uint64_t channel;    /* likewise */
    struct proto_message message, reply;
};

extern struct scene scene;

struct puppet *scene_choose_client(struct input *input);

/* Sends a packet, and notes what it means. Harmless for one that is not connected. */
void puppet_send(struct puppet *client, const uint8_t *packet, size_t size, unsigned n_fds);
/* Reads one reply. False: there is none. */
bool puppet_read_reply(struct puppet *client);
/* Harmless when it is not connected. */
void puppet_disconnect(struct puppet *client);

/* A request that is right in form, mostly. */
void puppet_send_request(struct input *input);
/* Bytes; with a header that is right, or without. */
void puppet_send_bytes(struct input *input);

#endif
