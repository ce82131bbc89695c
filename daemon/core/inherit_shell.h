/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_INHERIT_SHELL_H
#define DAEMON_CORE_INHERIT_SHELL_H
/* The calls of the shell that core_inherit() makes, and the loss that it tells the shell of. */
#include "daemon/core/kept.h"

/* The extent of a damage. */
struct inherit_loss {
    size_t n_damaged;              /* records; some of them may be none's */
    size_t n_segments, n_sessions; /* with whole records, that are lost for it */
};

/* The part of the shell in it. It is told of each object once, and refuses with -ENOMEM, or with -ENOENT an
 * object of which it has nothing. */
struct inherit_shell {
    /* The segment, which stays if this succeeds and the core is inherited at all: sets its backing. -ENOENT: it is an
     * orphan (segment.h). */
    int (*take_segment)(void *argument, struct segment *segment);
    /* The session: sets its owner, its page if it had one, and its peer's groups, which are those of the record. */
    int (*take_session)(void *argument, struct session *session, const struct kept_session *kept);
    void *argument;
    /* NULL, or told of a loss, before it is told of anything else. */
    void (*tell_loss)(void *argument, const struct inherit_loss *loss);
    uint64_t away_ns; /* for so long no daemon was there: parcels live so much longer */
};

#endif
