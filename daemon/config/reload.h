/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_RELOAD_H
#define DAEMON_CONFIG_RELOAD_H
/*
 * A reload: reads the configuration again on SIGHUP. A file and the system's user database can lie on another
 * machine, so both are read on a thread of the reload's own, and the loop takes over what came of it.
 *
 *   IDLE --reload_ask--> READING --done--> IDLE; asked meanwhile: READING again
 *
 * The thread begins with the first reload. Owned by the daemon; the loop's alone but for what the thread
 * reads.
 */
#include <stdbool.h>

#include "daemon/loop/worker.h"

struct daemon;

struct reload {
    struct daemon *daemon;
    struct worker worker;
    bool reading, again;
};

/* Reads the configuration again. Changes hold soon. Without memory or a thread it stays as it was
 * (logged). */
void reload_ask(struct reload *reload, struct daemon *daemon);

#endif
