/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/greet.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "client/session/socket.h"

static int read_reply(int fd, uint64_t deadline_ns, char *packet, struct proto_message *ret_reply) {
    int fds[SOCKET_FDS_MAX];
    unsigned count = 0;
    const char *reason;
    size_t size = 0;

    int r = socket_receive(fd, packet, PROTO_PACKET_MAX, deadline_ns, &size, fds, &count);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < count; i++)
        close_fd(fds[i]);
    if (size == 0)
        return -ECONNRESET;
    return proto_decode(PROTO_FROM_DAEMON, packet, size, ret_reply, &reason);
}

int greet(const char *path, uint64_t deadline_ns, enum proto_gpu_kind *ret_gpu, char *ret_text) {
    struct proto_message message = {.header = {.operation = PROTO_HELLO, .request = 1}};
    _cleanup_(close_fdp) int fd = -1;
    char packet[PROTO_PACKET_MAX];

    message.hello = (struct proto_hello){.magic = PROTO_MAGIC,
                                         .version_min = PROTO_VERSION_MIN,
                                         .version_max = PROTO_VERSION_MAX,
                                         .flags = PROTO_HELLO_NO_GPU};
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
    *ret_gpu = (enum proto_gpu_kind)message.hello_reply.gpu;
    message = (struct proto_message){.header = {.operation = PROTO_BYE, .request = 2}};
    (void)socket_send(fd, packet, proto_encode(&message, packet), deadline_ns);
    return 0;
}
