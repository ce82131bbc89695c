/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/adoption_ask.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/loop/log.h"

/* For each answer of the daemon and of the keeper. Both answer at once, unless they are stopped, or wait for a disk. */
#define WAIT_S     20
#define REPLY_SIZE 2048u

/* A socket that is connected to the daemon, and waits WAIT_S at most; -1: no daemon answers there. */
static int connect_to_daemon(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval wait = {.tv_sec = WAIT_S};

    _cleanup_(close_fdp) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) < 0 ||
        connect(fd, (const struct sockaddr *)&address, sizeof address) < 0)
        return -1;
    return take_fd(&fd);
}

/* The process that listens, if it is this user's, in this process's numbers; 0: another user's, or not seen here. */
static int find_process(int fd) {
    struct ucred daemon;
    socklen_t size = sizeof daemon;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &daemon, &size) < 0 || daemon.uid != geteuid())
        return 0;
    return daemon.pid;
}

/* Tells the keeper whose messages to take. Returns when it has heard. */
static bool tell_keeper(int pid) {
    return sd_notifyf(0, "MAINPID=%d", pid) > 0 && sd_notify_barrier(0, WAIT_S * NS_PER_S / NS_PER_US) > 0;
}

/* Reads a line. Returns false where none came. */
static bool read_line(int fd, char line[REPLY_SIZE]) {
    size_t used = 0;

    while (used < REPLY_SIZE - 1) {
        ssize_t n = recv(fd, line + used, REPLY_SIZE - 1 - used, 0);
        if (n <= 0)
            return false;
        used += (size_t)n;
        line[used] = '\0';
        if (line[used - 1] == '\n')
            return true;
    }
    return false;
}

static char *make_request(const char *notify, const char *limit) {
    cJSON *request = cJSON_CreateObject();

    cJSON_AddStringToObject(request, "command", "adopt");
    cJSON_AddStringToObject(request, "notify", notify);
    cJSON_AddNumberToObject(request, "keeper", getppid());
    cJSON_AddNumberToObject(request, "limit", (double)strtoull(limit, NULL, 10));
    char *text = cJSON_PrintUnformatted(request);
    cJSON_Delete(request);
    return text;
}

/* Asks the daemon. Says why it does not want to, unless it needs no keeper or does not know what one is. */
static bool ask(int fd, int pid, const char *notify, const char *limit) {
    _cleanup_(freep) char *request = make_request(notify, limit);
    char line[REPLY_SIZE] = "";

    if (request == NULL || send(fd, request, strlen(request), MSG_NOSIGNAL) < 0 ||
        send(fd, "\n", 1, MSG_NOSIGNAL) < 0 || !read_line(fd, line)) {
        log_error("the daemon that is alive (process %d) does not answer", pid);
        return false;
    }
    cJSON *reply = cJSON_Parse(line);
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(reply, "error");
    const char *code = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(error, "code"));
    const char *message = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(error, "message"));
    bool is_adopted = reply != NULL && error == NULL;
    if (is_adopted)
        log_info("the daemon that is alive (process %d) has lost its keeper: this one takes it on", pid);
    else if (code == NULL || (strcmp(code, "exists") != 0 && strcmp(code, "unknown-command") != 0))
        log_error("the daemon that is alive (process %d) cannot be taken on: %s", pid,
                  message != NULL ? message : "its answer is not understood");
    cJSON_Delete(reply);
    return is_adopted;
}

bool adoption_ask(const char *admin_path) {
    const char *notify = getenv("NOTIFY_SOCKET"), *limit = getenv("FDSTORE");

    if (notify == NULL || limit == NULL)
        return false;
    _cleanup_(close_fdp) int fd = connect_to_daemon(admin_path);
    int pid = fd >= 0 ? find_process(fd) : 0;
    if (pid <= 0 || !tell_keeper(pid))
        return false;
    if (ask(fd, pid, notify, limit))
        return true;
    (void)tell_keeper((int)getpid()); /* this process goes on to be the daemon, or fails */
    return false;
}
