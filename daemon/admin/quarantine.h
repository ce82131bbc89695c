/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_QUARANTINE_H
#define DAEMON_ADMIN_QUARANTINE_H
/*
 * What an operator can do about memory in quarantine: have it back although nothing shows that it is safe.
 * The dead process's GPU work, or the process itself where it has not ended, may then write into memory that
 * is lent anew, to processes of the same user: other users only ever get memory that comes fresh from the
 * driver, and the driver keeps what a process has mapped.
 */
#include <stdint.h>
#include <sys/types.h>

#include "daemon/core/death.h"

struct daemon;

struct quarantine_released {
    pid_t pid;
    uint64_t bytes;
    char reason[DEATH_TEXT_SIZE]; /* why it was held */
};

/* Releases a session that is in quarantine, and logs that. Who may is for the caller to check. Returns 0, or
 * -ENOENT where no session in quarantine has the id. On the loop. */
int quarantine_release(struct daemon *daemon, uint64_t session_id, struct quarantine_released *ret_released);

#endif
