/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/data_socket.h"

#include <errno.h>
#include <grp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/text.h"
#include "client/session/socket.h"

#define GROUP_TEXT_SIZE 320u

static int read_reply(int fd, uint64_t deadline_ns, char *packet, struct proto_message *ret_reply) {
    int fds[SOCKET_FDS_MAX];
    unsigned count = 0;
    bool has_lost; /* descriptors, which are not looked at */
    const char *reason;
    size_t size = 0;

    int r = socket_receive(fd, packet, PROTO_PACKET_MAX, deadline_ns, &size, fds, &count, &has_lost, false);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < count; i++)
        close_fd(fds[i]);
    if (size == 0)
        return -ECONNRESET;
    return proto_decode(PROTO_FROM_DAEMON, packet, size, ret_reply, &reason);
}

int data_greet(const char *path, uint64_t deadline_ns, struct proto_hello_reply *ret_reply, char *ret_text) {
    struct proto_message message = {.header = {.operation = PROTO_HELLO, .request = 1}};
    _cleanup_(close_fdp) int fd = -1;
    char packet[PROTO_PACKET_MAX];

    message.hello = (struct proto_hello){.magic = PROTO_MAGIC,
                                         .version_min = PROTO_VERSION_MIN,
                                         .version_max = PROTO_VERSION_MAX,
                                         .flags = PROTO_HELLO_QUESTION};
    int r = socket_connect(path, SOCK_SEQPACKET, deadline_ns, &fd);
    if (r == 0)
        r = socket_send(fd, packet, proto_encode(&message, packet), deadline_ns);
    if (r == 0)
        r = read_reply(fd, deadline_ns, packet, &message);
    if (r < 0)
        return r == -EPIPE ? -ECONNRESET : r;
    if (message.header.operation == PROTO_ERROR) {
        memcpy(ret_text, message.failure.text, sizeof message.failure.text);
        return (int)message.failure.error;
    }
    if (message.header.operation != PROTO_HELLO_REPLY)
        return -EBADMSG;
    *ret_reply = message.hello_reply;
    return 0;
}

/* The group that may connect to a socket, by the mode of its file: " (it is for the group gpupool)", or "".
 */
static const char *group_text(const char *path, char *text, size_t size) {
    struct stat status;

    text[0] = '\0';
    if (stat(path, &status) < 0 || (status.st_mode & S_IWGRP) == 0)
        return text;
    const struct group *group = getgrgid(status.st_gid);
    if (group != NULL)
        snprintf(text, size, " (it is for the group %s)", group->gr_name);
    else
        snprintf(text, size, " (it is for the group %u)", (unsigned)status.st_gid);
    return text;
}

int data_complain(int code, const char *path, const struct data_question *asked, int error,
                  const char *text) {
    char group[GROUP_TEXT_SIZE];

    switch (error) {
    case -ENOENT:
    case -ECONNREFUSED:
        if (socket_is_other_file(path))
            return complain(code, "%s is not a socket: name the socket of gpupoold with %s", path,
                            asked->option);
        return complain(
            code,
            "no gpupoold answers at %s: start it (systemctl start gpupoold), or name its socket with %s",
            path, asked->option);
    case -EACCES:
    case -EPERM:
        return complain(code, "this user may not connect to %s%s: ask its owner for access%s", path,
                        group_text(path, group, sizeof group),
                        asked->has_admin_option ? ", or name its admin socket with --admin-socket" : "");
    case -EPROTOTYPE:
        return complain(
            code,
            "%s is not the socket that gpupoold lends by (the admin socket, perhaps): name that with %s",
            path, asked->option);
    case -ETIMEDOUT:
        return complain(code, "gpupoold at %s did not answer within %s: look at its log%s", path,
                        NS_TEXT(asked->timeout_ns),
                        asked->has_admin_option ? ", or wait longer with --timeout" : "");
    case -EBADMSG:
    case -EMSGSIZE:
        return complain(code, "what answers at %s does not speak gpupoold's protocol: check the path", path);
    default:
        if (error > 0)
            return complain(code, "gpupoold at %s refused: %s", path, text);
        return complain(code, "cannot talk to gpupoold at %s: %s", path, strerror(-error));
    }
}

const char *data_path_of_environment(bool *ret_is_private) {
    const char *path = getenv("GPUPOOL_SOCKET");

    *ret_is_private = path != NULL && strcmp(path, "private") == 0;
    if (*ret_is_private)
        path = getenv("GPUPOOL_PRIVATE_SOCKET");
    return path != NULL && path[0] != '\0' ? path : NULL;
}
