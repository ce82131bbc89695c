/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/inbox.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/high_fd.h"

#define DIRECTORY_TEMPLATE "/" INBOX_DIRECTORY "XXXXXX"
#define SOCKET_NAME        "/notify"

/* Makes a directory for this user alone in the first folder that takes one. */
static int make_directory(char path[INBOX_PATH_SIZE]) {
    const char *folders[] = {getenv("XDG_RUNTIME_DIR"), "/run", getenv("TMPDIR"), "/tmp", "/dev/shm"};
    int r = -ENOENT;

    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        if (folders[i] == NULL || folders[i][0] != '/')
            continue;
        int n = snprintf(path, INBOX_PATH_SIZE, "%s" DIRECTORY_TEMPLATE, folders[i]);
        if (n < 0 || (size_t)n + sizeof SOCKET_NAME > INBOX_PATH_SIZE)
            continue;
        if (mkdtemp(path) != NULL)
            return 0;
        r = -errno;
    }
    return r;
}

static void remove_directory(char path[INBOX_PATH_SIZE]) {
    unlink(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    path[0] = '\0';
}

int inbox_open(struct inbox *inbox) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int on = 1;

    *inbox = (struct inbox){.fd = -1};
    _cleanup_(close_fdp) int fd = high_fd(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) < 0)
        return -errno;
    int r = make_directory(inbox->path);
    if (r < 0) {
        inbox->path[0] = '\0';
        return r;
    }
    strcat(inbox->path, SOCKET_NAME);
    memcpy(address.sun_path, inbox->path, strlen(inbox->path) + 1);
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0) {
        r = -errno;
        remove_directory(inbox->path);
        return r;
    }
    inbox->fd = take_fd(&fd);
    return 0;
}

void inbox_close(struct inbox *inbox) {
    inbox->fd = close_fd(inbox->fd);
    if (inbox->path[0] != '\0')
        remove_directory(inbox->path);
}

/* Takes the sender's number and the descriptors out of the control data. */
static void collect(struct msghdr *header, struct inbox_message *message) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part != NULL; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level != SOL_SOCKET)
            continue;
        if (part->cmsg_type == SCM_CREDENTIALS) {
            struct ucred sender;
            memcpy(&sender, CMSG_DATA(part), sizeof sender);
            message->pid = sender.pid;
        } else if (part->cmsg_type == SCM_RIGHTS) {
            size_t n = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < n && message->n_fds < INBOX_FDS_MAX; i++)
                memcpy(&message->fds[message->n_fds++], CMSG_DATA(part) + i * sizeof(int), sizeof(int));
        }
    }
}

int inbox_receive(const struct inbox *inbox, struct inbox_message *ret_message) {
    union {
        char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(INBOX_FDS_MAX * sizeof(int))];
        struct cmsghdr alignment;
    } control;
    struct iovec piece = {ret_message->text, INBOX_TEXT_MAX};
    struct msghdr header = {.msg_iov = &piece,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof control.bytes};

    ret_message->pid = 0;
    ret_message->n_fds = 0;
    ssize_t n = recvmsg(inbox->fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return 0; /* EAGAIN; other failures come again, or pass */
    ret_message->text[n] = '\0';
    ret_message->is_cut = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    collect(&header, ret_message);
    return 1;
}

void inbox_message_end(struct inbox_message *message) {
    for (unsigned i = 0; i < message->n_fds; i++)
        message->fds[i] = close_fd(message->fds[i]);
}
