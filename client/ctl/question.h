/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_QUESTION_H
#define CLIENT_CTL_QUESTION_H
/* A question to the daemon by a program that goes on when there is no answer. */
#include <stdint.h>

struct address;
struct reply;

/* Asks one command, such as "stats", at each place where the daemon may be. Returns 0 and a reply, which
 * may be a refusal, that reply_free() gives back; or a negative errno. Thread-safe. */
int question_ask(const struct address *address, uint64_t timeout_ns, const char *command,
                 struct reply **ret_reply);

#endif
