/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/spawn.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/keeper/keeper.h"
#include "daemon/keeper/kept.h"
#include "daemon/keeper/say.h"

/* Variables that the daemon has from the keeper or not at all. */
static const char *const own[] = {"NOTIFY_SOCKET", "FDSTORE",      "LISTEN_FDS",    "LISTEN_FDNAMES",
                                  "LISTEN_PID",    "WATCHDOG_PID", "WATCHDOG_USEC", KEEPER_DEATHS};
/* As many are added at most. */
#define ADDED 8u

enum {
    TEXT_SIZE = 64,
};

struct environment {
    char **all; /* ends with a NULL */
    size_t count;
    char *names; /* LISTEN_FDNAMES=… */
    char notify[sizeof "NOTIFY_SOCKET=" + 108];
    char store[TEXT_SIZE], deaths[TEXT_SIZE], fds[TEXT_SIZE], pid[TEXT_SIZE], watchdog[TEXT_SIZE];
};

extern char **environ;

static bool is_own(const char *variable) {
    for (size_t i = 0; i < ARRAY_LENGTH(own); i++) {
        size_t length = strlen(own[i]);
        if (strncmp(variable, own[i], length) == 0 && variable[length] == '=')
            return true;
    }
    return false;
}

static void add(struct environment *environment, char *variable) {
    environment->all[environment->count++] = variable;
}

/* The daemon answers the watchdog of the keeper's service manager, through the keeper. */
static void add_watchdog(struct environment *environment) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");

    if (usec == NULL || (pid != NULL && atoi(pid) != (int)getpid()))
        return;
    snprintf(environment->watchdog, sizeof environment->watchdog, "WATCHDOG_USEC=%s", usec);
    add(environment, environment->watchdog);
}

/* Returns 0 or -ENOMEM; the caller frees all and names. */
static int make_environment(const struct spawn *spawn, struct environment *environment) {
    size_t n = 0;

    while (environ[n] != NULL)
        n++;
    environment->all = calloc(n + ADDED + 1, sizeof *environment->all);
    environment->names = kept_list(spawn->kept);
    if (environment->all == NULL || environment->names == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (!is_own(environ[i]))
            add(environment, environ[i]);
    snprintf(environment->notify, sizeof environment->notify, "NOTIFY_SOCKET=%s", spawn->notify_path);
    snprintf(environment->store, TEXT_SIZE, "FDSTORE=%zu", spawn->kept->limit);
    snprintf(environment->deaths, TEXT_SIZE, KEEPER_DEATHS "=%u", spawn->deaths);
    add(environment, environment->notify);
    add(environment, environment->store);
    add(environment, environment->deaths);
    add_watchdog(environment);
    if (spawn->kept->count == 0)
        return 0;
    snprintf(environment->fds, TEXT_SIZE, "LISTEN_FDS=%zu", spawn->kept->count);
    add(environment, environment->fds);
    add(environment, environment->names);
    add(environment, environment->pid); /* the child writes it */
    return 0;
}

/* In the child. */
static _Noreturn void execute(const struct spawn *spawn, struct environment *environment) {
    snprintf(environment->pid, TEXT_SIZE, "LISTEN_PID=%d", (int)getpid());
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_UNBLOCK, spawn->unblocked, NULL);
    int r = kept_pass(spawn->kept);
    if (r == 0) {
        execve(spawn->program, spawn->arguments, environment->all);
        r = -errno;
    }
    say(SAY_ERROR, "%s cannot be started: %s", spawn->program, strerror(-r));
    _exit(SPAWN_NO_PROGRAM);
}

pid_t spawn_run(const struct spawn *spawn) {
    struct environment environment = {0};

    int r = make_environment(spawn, &environment);
    pid_t child = r < 0 ? r : fork();
    if (r == 0 && child == 0)
        execute(spawn, &environment);
    if (r == 0 && child < 0)
        child = -errno;
    free(environment.all);
    free(environment.names);
    return child;
}
