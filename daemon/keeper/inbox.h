/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_KEEPER_INBOX_H
#define DAEMON_KEEPER_INBOX_H
/*
 * The keeper's end of sd_notify(3): a datagram socket, whose path the daemon has as $NOTIFY_SOCKET. It lies in
 * a directory that only the keeper's user can enter, so that no other user fills its queue. The kernel says
 * with each message which process sent it.
 */
#include <stdbool.h>
#include <sys/types.h>

/* The longest text that is read, as systemd's: a longer message is not taken. */
#define INBOX_TEXT_MAX 4096u
/* The most descriptors of one message: SCM_MAX_FD of Linux. */
#define INBOX_FDS_MAX   253u
#define INBOX_PATH_SIZE 108u
/* How the name of its directory begins. */
#define INBOX_DIRECTORY "gpupool-keeper-"

struct inbox {
    int fd;
    char path[INBOX_PATH_SIZE]; /* "": none */
};

struct inbox_message {
    pid_t pid; /* of the sender */
    char text[INBOX_TEXT_MAX + 1];
    int fds[INBOX_FDS_MAX]; /* -1: taken out */
    unsigned n_fds;
    bool is_cut; /* something of it is missing: the text's end, or descriptors */
};

/* Makes the socket and its directory. Returns 0, or a negative errno. */
int inbox_open(struct inbox *inbox);

/* Closes the socket and removes it with its directory. */
void inbox_close(struct inbox *inbox);

/* Receives without waiting. Returns 1, or 0 where there is nothing. inbox_message_end() closes what is left of
 * a message. */
int inbox_receive(const struct inbox *inbox, struct inbox_message *ret_message);
void inbox_message_end(struct inbox_message *message);

#endif
