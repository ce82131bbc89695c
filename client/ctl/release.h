/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_RELEASE_H
#define CLIENT_CTL_RELEASE_H
/*
 * Before memory is released from quarantine by force: a warning of the consequences, and a question unless
 * --yes has answered it.
 */
#include <stdbool.h>
#include <stdint.h>

#include "client/ctl/json.h"

/* Finds the session in a reply to "quarantine"; NULL: it is not there. */
const struct cJSON *release_find(const struct cJSON *reply, uint64_t id);

/* Warns on standard error. */
void release_warn(const struct cJSON *session);

/* Whether there is a terminal to ask on. */
bool release_can_ask(void);

/* Asks on the terminal. False: the answer was no. */
bool release_confirm(void);

#endif
