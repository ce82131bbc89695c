/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_DATA_SOCKET_H
#define CLIENT_CTL_DATA_SOCKET_H
/*
 * The daemon as it answers HELLO's QUESTION on its data socket: whether it answers this user, and which
 * daemon it is. No session begins for that, so that the answer also comes where all sessions are taken.
 */
#include <stdbool.h>
#include <stdint.h>

#include "proto/proto.h"

#define DATA_SOCKET_DEFAULT "/run/gpupool/gpupool.sock"

/* A service that its socket starts needs a moment for its GPUs. */
#define GREETING_NS (10 * NS_PER_S)

/* Greets the daemon. Returns:
 * 0: *ret_reply is its answer;
 * a positive PROTO_E_…: it refused, and ret_text (PROTO_TEXT_MAX + 1 bytes) has its text;
 * -EBADMSG: gpupoold is not what answers;
 * -ECONNRESET: the other side hung up;
 * -ETIMEDOUT, -ENAMETOOLONG, or the error of connect(2). */
int data_greet(const char *path, uint64_t deadline_ns, struct proto_hello_reply *ret_reply, char *ret_text);

/* For the message about a question that failed. */
struct data_question {
    const char *option;    /* what names the data socket */
    uint64_t timeout_ns;   /* how long the answer was waited for */
    bool has_admin_option; /* the command has --admin-socket and --timeout */
};

/* Says on standard error why the greeting failed, by the value that data_greet() returned. Returns code. */
int data_complain(int code, const char *path, const struct data_question *asked, int error, const char *text);

/* The data socket that the environment names: $GPUPOOL_SOCKET, or for "private" $GPUPOOL_PRIVATE_SOCKET,
 * which the program with the private daemon hands on to its children. NULL: it names none. *ret_is_private:
 * it is "private"; NULL then says that no private daemon is known here. */
const char *data_path_of_environment(bool *ret_is_private);

#endif
