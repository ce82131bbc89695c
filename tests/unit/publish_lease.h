/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PUBLISH_LEASE_H
#define TESTS_UNIT_PUBLISH_LEASE_H
/* A lease that a test publishes under a name. */
#include <stdio.h>

#include "core_fixture.h"

/* Publishes a lease, which stays the session's. flags: PROTO_PUBLISH_…. Returns the generation. */
static inline uint64_t publish_lease(struct session *session, const struct lease *lease, const char *text,
                                     uint32_t flags, uint64_t now_ns) {
    const struct proto_lease_name name = name_of(lease);
    struct proto_publish publish = {.flags = flags, .count = 1, .layout = UINT64_MAX - 1};
    static uint64_t n_tokens;
    struct proto_token tokens[2] = {0};
    uint64_t generation = 0;

    snprintf(publish.name, sizeof publish.name, "%s", text);
    publish.buffers[0] = (struct proto_publish_buffer){
        .lease = name.lease, .generation = name.generation, .size_bytes = lease->block->size_bytes};
    for (unsigned i = 0; i < 2; i++) {
        n_tokens++;
        memcpy(tokens[i].bytes, &n_tokens, sizeof n_tokens);
    }
    assert_int_equal(core_publish(session, &publish, tokens, now_ns, &generation), 0);
    return generation;
}

#endif
