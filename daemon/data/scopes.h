/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_SCOPES_H
#define DAEMON_DATA_SCOPES_H
/*
 * The sockets of scopes (daemon/core/scope.h), below a directory that lies beside the admin socket. The scope
 * "trainer" of the daemon whose admin socket is /run/gpupool-admin/admin.sock has
 *
 *   /run/gpupool-admin/admin.scopes/trainer/          closed to other users, unless the scope names its users
 *   /run/gpupool-admin/admin.scopes/trainer/scope.json   from which the next daemon makes the scope again
 *   /run/gpupool-admin/admin.scopes/trainer/socket/   to be mounted into the container, as /run/gpupool
 *   /run/gpupool-admin/admin.scopes/trainer/socket/gpupool.sock
 *
 * The outer directory keeps out those users of the machine whom the socket is not for. A container sees the
 * inner one alone, and any user may be in it.
 *
 * The sockets go with the daemon, the rest stays until the scope is dropped: a container that has the inner
 * directory mounted finds the socket of the next daemon there. In /run all of it goes with the machine.
 */
#include <stddef.h>
#include <uv.h>

#include "base/list.h"
#include "daemon/config/config.h"
#include "daemon/core/scope.h"
#include "daemon/loop/listener.h"

struct clients;
struct store;

#define SCOPES_SUFFIX    ".scopes"
#define SCOPES_SAVED     "scope.json"
#define SCOPES_TEXT_SIZE 512u

/* All borrowed. */
struct scopes_terms {
    uv_loop_t *loop;
    struct scheduler *scheduler;
    struct closer *closer;
    struct core *core;
    struct clients *clients;
    struct store *store;
};

struct scopes {
    struct scopes_terms terms;
    char directory[CONFIG_PATH_SIZE]; /* "": scopes cannot be made */
    const char *sim_path;             /* of the simulated GPU's socket; NULL: there is none. Borrowed */
    struct list all;                  /* struct scope_socket.link */
};

/* The socket of an open scope: scope->owner. */
struct scope_socket {
    struct scopes *scopes;
    struct scope *scope;
    struct config_limits limits; /* as they were given: a share of a pool changes with the pool */
    struct listener listener;
    struct list link;
};

void scopes_init(struct scopes *scopes, const struct scopes_terms *terms);

/* From now on scopes can be made, below the directory that belongs to an admin socket. Makes nothing. */
void scopes_start(struct scopes *scopes, const char *admin_path, const char *sim_path);

/* Writes the path of a file of a scope; file "": of its directory. Returns 0, or -ENAMETOOLONG. */
int scopes_file(const struct scopes *scopes, const char *name, const char *file, char *path, size_t size);

/* Makes a scope, its directories and its socket. The name is one that scope_name_is_sound(). limits: as
 * given, which terms->limits need not be. saved: what scope.json is to say; NULL: it is there. Returns 0,
 * or a negative errno and why, without a line in the log. */
int scopes_add(struct scopes *scopes, const struct scope_terms *terms, const struct config_limits *limits,
               const char *saved, struct scope **ret_scope, char why[SCOPES_TEXT_SIZE]);

/* Gives an open scope other terms; its name and number stay. As scopes_add(). */
int scopes_set(struct scopes *scopes, struct scope *scope, const struct scope_terms *terms,
               const struct config_limits *limits, const char *saved, char why[SCOPES_TEXT_SIZE]);

/* Whether a name can be a directory's and a label's: letters, digits, '.', '_' and '-', no '.' or '-' at the
 * beginning, shorter than SCOPE_NAME_SIZE. A socket's path limits it further. */
bool scope_name_is_sound(const char *name);

/* No process comes in any more; removes the socket and what lies beside it. The scope itself goes with its
 * last process (core_scope_drop). */
void scopes_drop(struct scopes *scopes, struct scope *scope);

/* Removes what is left of a scope that could not be made again. Returns whether there was something. */
bool scopes_forget(const struct scopes *scopes, const char *name);

/* The pools' sizes have changed: resolves the limits. The core's policy is to be set afterwards. */
void scopes_configure(struct scopes *scopes);

/* To be called every few seconds. */
void scopes_housekeep(struct scopes *scopes);

/* The sockets stay, for the next daemon. */
void scopes_leave(struct scopes *scopes);

/* Removes the sockets; the files for the next daemon stay. */
void scopes_close(struct scopes *scopes);

#endif
