/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_INHERIT_H
#define DAEMON_CORE_INHERIT_H
/*
 * How a core keeps an estate, and how a successor's core begins with it: with the segments, sessions, leases,
 * parcels and requests that the predecessor's had, under the same numbers. Heaps, sums, charges and queues
 * follow from these, and are made anew. Questions to sessions are forgotten: they are asked again.
 *
 * A user of whom a record is damaged is lost, with all sessions, segments and leases. The core does not have them: it
 * lends nothing of these segments. The shell closes its handles of them, and the connections. The driver and the
 * kernel keep the memory for the processes that have it mapped, and free it with the last one. Until then the pool
 * counts it as not there, so that growth may fail. A damaged record of no user is lost alone.
 *
 * The whole estate is refused, by a reason for people,
 *   - if a record is damaged so that it is not known whose it was,
 *   - if the numbers that were given last are damaged, or the head or a chunk (estate_open()),
 *   - if records contradict each other although their sums are right,
 *   - if a newer daemon kept something that may hold memory.
 *
 * Records of the shell's kinds that are damaged, or of a lost user, are removed likewise: the shell reads its records
 * afterwards.
 *
 * Each number of a record is checked, also where the record's sum is right: what is inherited is as valid as what a
 * core makes by itself.
 */
#include "daemon/core/core.h"
#include "daemon/core/inherit_shell.h"

/* The core keeps an estate from now on, which is new; a first step of it ends. To be called before anything is in the core.
 * Returns 0, or -ENOMEM: the core keeps none. */
int core_keep(struct core *core, struct estate *estate);

/* The core, which has its pools and scopes and nothing else, begins with what a predecessor's kept. The pools are
 * those that the predecessor had, under the same numbers; none is ready yet. Then it keeps the estate. An estate of
 * which no step has ended is a new one: core_keep(). Requests that limits or a policy do not allow any more are
 * refused in the present step; one that was granted an orphan which its session was not told of waits again. Returns 0, -ENOMEM, -ENOENT, or -EBADMSG: *ret_reason, a constant string, says what
 * is wrong. After a failure the estate is as it was, and the core is to be freed: it has no session any more, and
 * nothing of it points to what the shell set. */
int core_inherit(struct core *core, struct estate *estate, const struct inherit_shell *shell,
                 const char **ret_reason);

#endif
