/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_QUESTION_H
#define CLIENT_CTL_QUESTION_H
/* A question to the daemon of an address, at each of the places where it may be, until one answers. */
#include <stddef.h>
#include <stdint.h>

struct address;
struct reply;

/* The places that were asked. */
struct question_trail {
    const char *path;    /* the last one; borrowed from the address */
    char failures[1024]; /* each that failed, and why */
};

/* Sends a request, to which the daemon's identity is added where the address has one. Returns 0 and the
 * line that came back, as admin_ask() does; -ESTALE: another daemon answers at the last place; or a
 * negative errno. */
int question_send(const struct address *address, uint64_t timeout_ns, const char *request, char **ret_line,
                  size_t *ret_length, struct question_trail *ret_trail);

/* Asks one command, such as "stats". Returns 0 and a reply, which may be a refusal, that reply_free() gives
 * back; or a negative errno. Thread-safe. */
int question_ask(const struct address *address, uint64_t timeout_ns, const char *command,
                 struct reply **ret_reply);

#endif
