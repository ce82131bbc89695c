/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_TENANT_ID_H
#define DAEMON_CORE_TENANT_ID_H
/*
 * Which tenant: a user, and the scope (scope.h) that the user's processes came through. In most containers
 * everybody is uid 0, so the uid alone tells no two of them apart.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* The scope of the ordinary socket, which is always there. */
#define SCOPE_ORDINARY 0u

struct tenant_id {
    uid_t uid;
    uint32_t scope;
};

static inline bool tenant_id_is(struct tenant_id a, struct tenant_id b) {
    return a.uid == b.uid && a.scope == b.scope;
}

#endif
