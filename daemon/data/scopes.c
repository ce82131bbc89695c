/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/data/scopes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/beside.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/config/user_policy.h"
#include "daemon/core/core.h"
#include "daemon/data/clients.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/log.h"
#include "gpu/gpu.h"

#define SOCKET_DIRECTORY "socket"
#define SCOPES_FRESH     ".new"
#define SOCKET_FILE      SOCKET_DIRECTORY "/gpupool.sock"

void scopes_init(struct scopes *scopes, const struct scopes_terms *terms) {
    *scopes = (struct scopes){.terms = *terms};
    list_init(&scopes->all);
}

void scopes_start(struct scopes *scopes, const char *admin_path, const char *sim_path) {
    int n = path_beside(admin_path, SCOPES_SUFFIX, scopes->directory, sizeof scopes->directory);
    if (n >= (int)sizeof scopes->directory)
        scopes->directory[0] = '\0';
    scopes->sim_path = sim_path;
}

int scopes_file(const struct scopes *scopes, const char *name, const char *file, char *path, size_t size) {
    int n = snprintf(path, size, "%s/%s%s%s", scopes->directory, name, file[0] != '\0' ? "/" : "", file);
    return n >= (int)size ? -ENAMETOOLONG : 0;
}

bool scope_name_is_sound(const char *name) {
    size_t length = strlen(name);

    return length > 0 && length < SCOPE_NAME_SIZE && name[0] != '.' && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == length;
}

static void on_accept(struct listener *listener, int fd) {
    struct scope_socket *socket = listener->user;
    clients_accept(socket->scopes->terms.clients, fd, socket->scope->id);
}

static bool make_room(struct listener *listener) {
    const struct scope_socket *socket = listener->user;
    return clients_make_room(socket->scopes->terms.clients);
}

static void on_closed(struct listener *listener) {
    free(listener->user);
}

/* Makes a directory with this mode, or gives it to one that is there and is the daemon's own. Returns 0 or a
 * negative errno. */
static int make_directory(const char *path, mode_t mode) {
    struct stat status;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) < 0)
        return -errno;
    if (status.st_uid != geteuid())
        return -EPERM;
    return fchmod(fd, mode) < 0 ? -errno : 0;
}

/* Writes a file anew; where that fails, the one that was there stays. */
static int save(const char *path, const char *text) {
    char fresh[2 * CONFIG_PATH_SIZE + sizeof SCOPES_FRESH];

    snprintf(fresh, sizeof fresh, "%s" SCOPES_FRESH, path);
    _cleanup_(close_fdp) int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    size_t size = strlen(text);
    ssize_t n = fd < 0 ? -1 : write(fd, text, size);
    int r = n < 0 ? -errno : (size_t)n < size ? -ENOSPC : rename(fresh, path) < 0 ? -errno : 0;
    if (r < 0)
        unlink(fresh);
    return r;
}

/* Removes a scope's files; the sockets are gone. In a directory that a container may write to there can be
 * others, which are not the daemon's to remove. */
static void remove_files(const struct scopes *scopes, const char *name) {
    static const char *const files[] = {SOCKET_FILE GPU_SIM_PATH_SUFFIX, SCOPES_SAVED,
                                        SCOPES_SAVED SCOPES_FRESH};
    static const char *const directories[] = {SOCKET_DIRECTORY, ""};
    char path[2 * CONFIG_PATH_SIZE];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (scopes_file(scopes, name, files[i], path, sizeof path) == 0)
            unlink(path);
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        if (scopes_file(scopes, name, directories[i], path, sizeof path) == 0 && rmdir(path) < 0 &&
            errno != ENOENT)
            log_warning("%s of a scope that was dropped stays: %s", path, strerror(errno));
}

/* Makes the directories. Returns 0 or a negative errno, and the path that could not be made. */
static int make_directories(const struct scopes *scopes, const struct scope_terms *terms, const char *saved,
                            char path[2 * CONFIG_PATH_SIZE]) {
    const size_t size = 2 * CONFIG_PATH_SIZE;

    snprintf(path, size, "%s", scopes->directory);
    int r = make_directory(path, 0711);
    if (r == 0)
        r = scopes_file(scopes, terms->name, "", path, size);
    if (r == 0)
        r = make_directory(path, terms->n_uids > 0 ? 0711 : 0700);
    if (r == 0)
        r = scopes_file(scopes, terms->name, SOCKET_DIRECTORY, path, size);
    if (r == 0)
        r = make_directory(path, 0755);
    if (r == 0 && saved != NULL)
        r = scopes_file(scopes, terms->name, SCOPES_SAVED, path, size);
    return r == 0 && saved != NULL ? save(path, saved) : r;
}

/* A client looks for the simulated GPU beside its socket. */
static void link_simulation(const struct scopes *scopes, const char *name) {
    char path[2 * CONFIG_PATH_SIZE];

    if (scopes->sim_path == NULL ||
        scopes_file(scopes, name, SOCKET_FILE GPU_SIM_PATH_SUFFIX, path, sizeof path) < 0)
        return;
    unlink(path);
    if (link(scopes->sim_path, path) < 0)
        log_warning("%s: %s: the scope's processes find no simulated GPU", path, strerror(errno));
}

/* Makes the socket and begins to accept. */
static int open_socket(struct scope_socket *socket) {
    const struct scopes_terms *terms = &socket->scopes->terms;
    char path[2 * CONFIG_PATH_SIZE];

    int r = scopes_file(socket->scopes, socket->scope->terms.name, SOCKET_FILE, path, sizeof path);
    if (r == 0)
        r = listener_make(&socket->listener, terms->store, path, SOCK_SEQPACKET, 0666, "");
    if (r == 0 && descriptors_are_short(socket->listener.fd))
        r = -EMFILE;
    if (r == 0)
        r = listener_start(&socket->listener, terms->loop, terms->scheduler, terms->closer, on_accept,
                           make_room, socket);
    return r;
}

int scopes_add(struct scopes *scopes, const struct scope_terms *terms, const struct config_limits *limits,
               const char *saved, struct scope **ret_scope, char why[SCOPES_TEXT_SIZE]) {
    char path[2 * CONFIG_PATH_SIZE] = "";
    struct scope *scope;

    if (scopes_file(scopes, terms->name, SOCKET_FILE, path, sizeof path) < 0 ||
        strlen(path) >= CONFIG_PATH_SIZE) {
        snprintf(why, SCOPES_TEXT_SIZE,
                 "%s would be longer than a socket's path can be: choose a shorter name", path);
        return -ENAMETOOLONG;
    }
    struct scope_socket *socket = calloc(1, sizeof *socket);
    int r = socket == NULL ? -ENOMEM : make_directories(scopes, terms, saved, path);
    if (r < 0) {
        snprintf(why, SCOPES_TEXT_SIZE, "%s: %s", path, strerror(-r));
        if (saved != NULL && r != -EPERM)
            remove_files(scopes, terms->name);
        free(socket);
        return r;
    }
    r = scope_add(scopes->terms.core, terms, &scope);
    if (r < 0) {
        if (saved != NULL)
            remove_files(scopes, terms->name);
        snprintf(why, SCOPES_TEXT_SIZE,
                 r == -ENOSPC ? "there are %u scopes, as many as there may be: drop some" : "no memory",
                 SCOPES_MAX);
        free(socket);
        return r;
    }
    *socket = (struct scope_socket){.scopes = scopes,
                                    .scope = scope,
                                    .limits = *limits,
                                    .listener = {.fd = -1, .lock_fd = -1, .spare_fd = -1}};
    r = open_socket(socket);
    socket->listener.user = socket;
    socket->listener.on_closed = on_closed;
    if (r < 0) {
        snprintf(why, SCOPES_TEXT_SIZE, "the scope's socket cannot be made: %s", strerror(-r));
        listener_close(&socket->listener);
        scope_drop(scope);
        if (saved != NULL)
            remove_files(scopes, terms->name);
        return r;
    }
    scope->owner = socket;
    list_append(&scopes->all, &socket->link);
    user_policy_resolve(scopes->terms.core, &socket->limits, scope->terms.limits);
    link_simulation(scopes, terms->name);
    *ret_scope = scope;
    return 0;
}

int scopes_set(struct scopes *scopes, struct scope *scope, const struct scope_terms *terms,
               const struct config_limits *limits, const char *saved, char why[SCOPES_TEXT_SIZE]) {
    struct scope_socket *socket = scope->owner;
    char path[2 * CONFIG_PATH_SIZE] = "";

    int r = make_directories(scopes, terms, saved, path);
    if (r < 0) {
        snprintf(why, SCOPES_TEXT_SIZE, "%s: %s", path, strerror(-r));
        return r;
    }
    scope->terms = *terms;
    socket->limits = *limits;
    user_policy_resolve(scopes->terms.core, &socket->limits, scope->terms.limits);
    core_scope_changed(scope, clock_now_ns());
    return 0;
}

void scopes_drop(struct scopes *scopes, struct scope *scope) {
    struct scope_socket *socket = scope->owner;

    list_remove(&socket->link);
    listener_close(&socket->listener);
    remove_files(scopes, scope->terms.name);
    core_scope_drop(scope, clock_now_ns());
}

bool scopes_forget(const struct scopes *scopes, const char *name) {
    char path[2 * CONFIG_PATH_SIZE];

    if (scopes->directory[0] == '\0' || !scope_name_is_sound(name) ||
        scopes_file(scopes, name, SCOPES_SAVED, path, sizeof path) < 0 || access(path, F_OK) < 0)
        return false;
    if (scopes_file(scopes, name, SOCKET_FILE, path, sizeof path) == 0)
        unlink(path);
    remove_files(scopes, name);
    return true;
}

void scopes_configure(struct scopes *scopes) {
    list_for_each_entry(struct scope_socket, socket, &scopes->all, link) {
        user_policy_resolve(scopes->terms.core, &socket->limits, socket->scope->terms.limits);
    }
}

void scopes_housekeep(struct scopes *scopes) {
    list_for_each_entry(struct scope_socket, socket, &scopes->all, link) {
        listener_retry(&socket->listener);
    }
}

void scopes_leave(struct scopes *scopes) {
    list_for_each_entry(struct scope_socket, socket, &scopes->all, link) {
        listener_leave(&socket->listener);
    }
    scopes->sim_path = NULL;
}

void scopes_close(struct scopes *scopes) {
    char path[2 * CONFIG_PATH_SIZE];

    list_for_each_entry_safe(struct scope_socket, socket, &scopes->all, link) {
        if (scopes_file(scopes, socket->scope->terms.name, SOCKET_FILE GPU_SIM_PATH_SUFFIX, path,
                        sizeof path) == 0)
            unlink(path);
        list_remove(&socket->link);
        socket->scope->owner = NULL;
        listener_close(&socket->listener);
    }
}
