/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_ASKING_H
#define TESTS_UNIT_ASKING_H
/* A false daemon that asks its client for idle memory of the host. */
#include <sys/timerfd.h>

#include "tests/unit/client_fixture.h"

/* The timer by which the daemon asks, as in client_ask_reclaim(). */
static int asking_fd;

static inline void asking_begin(void) {
    asking_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    assert_true(asking_fd >= 0);
}

/* The daemon marks the host's pool as short in the client's page, or does not. */
static inline void mark(const struct gpupool_client *client, bool is_short) {
    uint64_t pools = is_short ? UINT64_C(1) << (FALSE_POOL_HOST - 1) : 0;
    atomic_store(&client->session.page.memory->shortage.pools, pools);
}

static inline void ask(void) {
    static const struct itimerspec at_once = {.it_value = {.tv_nsec = 1}};
    assert_int_equal(timerfd_settime(asking_fd, 0, &at_once, NULL), 0);
}

static inline bool greet_with_timer(struct false_daemon *daemon, struct false_session *session,
                             const struct proto_message *request) {
    if (request->header.operation != PROTO_HELLO)
        return false;
    struct proto_message reply = {
        .header = {.operation = PROTO_HELLO_REPLY, .request = request->header.request}};
    reply.hello_reply = (struct proto_hello_reply){.magic = PROTO_MAGIC,
                                                   .version = PROTO_VERSION_MAX,
                                                   .gpu = (uint16_t)daemon->gpu,
                                                   .session = 1,
                                                   .flags = PROTO_HELLO_REPLY_EVENTFD};
    false_send(session, &reply, &asking_fd, 1);
    return true;
}

#endif
