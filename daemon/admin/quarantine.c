/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/admin/quarantine.h"

#include <errno.h>
#include <stdio.h>

#include "base/units.h"
#include "daemon/data/client.h"
#include "daemon/daemon.h"
#include "daemon/loop/log.h"
#include "daemon/core/core.h"

static struct session *find_quarantined(const struct core *core, uint64_t id) {
    list_for_each(position, &core->sessions) {
        struct session *session = container_of(position, struct session, link);
        if (session->id == id && session->state == SESSION_QUARANTINED && session->owner != NULL)
            return session;
    }
    return NULL;
}

int quarantine_release(struct daemon *daemon, uint64_t session_id, struct quarantine_released *ret_released) {
    struct session *session = find_quarantined(daemon->core, session_id);

    if (session == NULL)
        return -ENOENT;
    *ret_released = (struct quarantine_released){.pid = session->peer.pid,
                                                 .bytes = session->leased_bytes + session->fenced_bytes};
    snprintf(ret_released->reason, sizeof ret_released->reason, "%s", session->quarantine_reason);
    log_warning(
        "root releases %s of session %llu (pid %d, %s) from quarantine by force, although %s: work that the "
        "process left on a GPU may write into what is lent anew",
        BYTES_TEXT(ret_released->bytes), (unsigned long long)session_id, (int)session->peer.pid,
        session->peer.command, ret_released->reason);
    client_force(session->owner);
    return 0;
}
