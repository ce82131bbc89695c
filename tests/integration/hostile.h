/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_HOSTILE_H
#define TESTS_INTEGRATION_HOSTILE_H
/*
 * The frame of the tests of hostile clients: a daemon, an attacker, a well-behaved client from before and one
 * that comes meanwhile. An attacker is a process of its own, so that what it leaves behind comes back with
 * its end; after each, nothing is leased, quarantined or waiting, and the daemon has as many descriptors as
 * before.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "proto/proto.h"
#include "tests/integration/puppet.h"
#include "tests/integration/wire_peer.h"
#include "tests/raw_client.h"

#define POOL_MIB 32u
#define ATTACKER 12345u /* a uid that no account has */

extern struct test_daemon daemon_;
extern unsigned descriptors; /* of the daemon at rest, as hostile_descriptors() counts */

/* Set-up and tear-down of a program: its daemon. */
int hostile_start_daemon(void **state);
int hostile_stop_daemon(void **state);

/* All of the daemon's but those of the segments. */
unsigned hostile_descriptors(void);
/* Nothing is leased, quarantined or waiting, and no client is connected. */
bool is_at_rest(void);
/* Waits for that, with all descriptors back. */
void come_to_rest(const char *after);

/* The well-behaved client takes, fills, checks and gives back so many times. When one of that fails or does
 * not come, the message says beside what, and what the daemon's stats are. */
void live_well(struct puppet *puppet, unsigned rounds);

/* Starts an attack in a process of its own, as a user (0: the test's own). *ret_ready is readable once it has
 * begun; the caller closes it. */
pid_t attacker_start(uid_t uid, void (*attack)(int ready), int *ret_ready);

/* Runs an attack, as a user (0: the test's own), with the well-behaved client beside it; newcomers: further
 * clients come meanwhile. The attack calls tell() once it has begun. An attack that goes on for ever is
 * ended; one that calls be_heard_out() has to end by itself, with status 0. */
void survive_as(uid_t uid, const char *name, void (*attack)(int ready), bool newcomers);
#define survive(attack) survive_as(0, #attack, attack, true)

/* --- for attackers --- */

/* A condition that must hold in an attacker, where an assertion of cmocka's would not be seen. */
#define MUST(holds)                                                                                          \
    do {                                                                                                     \
        if (!(holds)) {                                                                                      \
            fprintf(stderr, "attacker: %s:%d: %s (%s)\n", __FILE__, __LINE__, #holds, strerror(errno));      \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

void tell(int ready);
void be_heard_out(void);

/* A socket to the daemon, with bounds; -1 where it does not let us in. */
int raw_connect(void);
#endif
