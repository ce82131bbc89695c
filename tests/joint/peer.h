/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_JOINT_PEER_H
#define TESTS_JOINT_PEER_H
/* A connection as the simulated daemon has it: the daemon's record of a client, and what became of it. */
#include "daemon/data/client.h"
#include "tests/joint/world.h"

#define JOINT_FIRST_PID 1000

struct joint_peer {
    bool is_used;
    unsigned client; /* that connected */
    bool is_lost;    /* the connection is over, and the session is in quarantine */
    struct client record;
};

static inline struct joint_peer *joint_peer_of(struct client *record) {
    return container_of(record, struct joint_peer, record);
}

/* --- daemon.c */

/* A record that has nothing. */
struct joint_peer *joint_peer_new(unsigned client);

/* --- peer.c */

/* A successor does not find the connection, or its socket. */
void joint_peer_leave_estate(struct joint_peer *peer);
void joint_peer_leave_socket(struct joint_peer *peer);

#endif
