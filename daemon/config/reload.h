/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_RELOAD_H
#define DAEMON_CONFIG_RELOAD_H
/*
 * A reload: reads the configuration again, on SIGHUP and for admin clients. A file and the system's user
 * database can lie on another machine, so both are read on a thread of the reload's own, and the loop takes
 * over what came of it. A configuration with a mistake changes nothing. The owner applies a fresh
 * configuration: to the pools, too, which are above this folder.
 *
 *   IDLE --reload_ask--> READING --done--> IDLE; asked meanwhile: READING again
 *
 * The thread begins with the first reload. Owned by the daemon; the loop's alone but for what the thread
 * reads.
 */
#include <stdbool.h>

#include "base/list.h"
#include "daemon/config/changes.h"
#include "daemon/loop/worker.h"

struct config;
struct notifier;

/* The outcome of a reload. */
struct reload_outcome {
    int result; /* 0: the changes hold; -EINVAL: mistakes; another negative errno */
    const struct config_mistakes *mistakes; /* borrowed; NULL: none were looked for */
    const struct config_changes *changes;   /* likewise; none without result 0 */
    const struct log_copy *warnings;        /* likewise */
};

/* One that waits for the outcome of a reload; embedded in its owner, which may leave with list_remove(). */
struct reload_waiter {
    struct list link;
    void (*done)(struct reload_waiter *waiter, const struct reload_outcome *outcome);
};

/* All borrowed. */
struct reload_terms {
    struct config *config; /* in force */
    const char *path;      /* of the file, which may not be there; NULL: none */
    /* File and command line again, on the reload's thread. Returns 0, or a negative errno with mistakes.
     * NULL: there are none to read. */
    int (*reread)(void *user, struct config *ret_config, struct config_mistakes *mistakes);
    void *reread_user;
    /* Puts a fresh configuration in force, on the loop. Takes it. */
    void (*apply)(void *user, struct config *fresh);
    void *apply_user;
    uv_loop_t *loop;
    struct notifier *notifier; /* is told of a reload's begin and end */
};

struct reload {
    struct reload_terms terms;
    struct worker worker;
    bool stopping; /* what is read from now on is not applied */
    bool reading, again;
    struct list waiting; /* struct reload_waiter.link: for the reading that is under way */
    struct list next;    /* for the one after it: the file may have changed since that began */
    /* The changes of the last reading. Each reading is compared with the values in force, so that the changes
     * with a key that needs a restart are those that wait for one. */
    struct config_changes changes;
};

void reload_init(struct reload *reload, const struct reload_terms *terms);

/* Stops the thread. No reading is begun after it. */
void reload_stop(struct reload *reload);

/* The change of a key that waits for a restart, in the section of this name; NULL: none does. */
const struct config_change *reload_pending(const struct reload *reload, const char *section,
                                           const struct config_key *key);

/* Reads the configuration again. Changes hold soon. Without memory or a thread it stays as it was
 * (logged). waiter: is told of the outcome of a reading that begins after this call, on the loop and perhaps
 * within this call; NULL: none. */
void reload_ask(struct reload *reload, struct reload_waiter *waiter);

#endif
