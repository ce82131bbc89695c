/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/question.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/ctl/address.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/json.h"

/* How the refusal of a daemon begins that is not the one that the request names. */
#define OTHER_DAEMON "{\"error\":{\"code\":\"other-daemon\""

int question_send(const struct address *address, uint64_t timeout_ns, const char *request, char **ret_line,
                  size_t *ret_length, struct question_trail *ret_trail) {
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns);
    char named[256];
    int r = -ENOENT;

    *ret_trail = (struct question_trail){.path = address->paths[0]};
    if (address->identity[0] != '\0') {
        snprintf(named, sizeof named, "{\"daemon\":\"%s\",%s", address->identity, request + 1);
        request = named;
    }
    for (unsigned i = 0; i < address->n_paths; i++) {
        ret_trail->path = address->paths[i];
        r = admin_ask(ret_trail->path, deadline_ns, request, ret_line, ret_length);
        if (r == 0 && strncmp(*ret_line, OTHER_DAEMON, sizeof OTHER_DAEMON - 1) != 0)
            return 0;
        if (r == 0) {
            free(take_ptr(ret_line));
            r = -ESTALE;
        }
        size_t used = strlen(ret_trail->failures);
        snprintf(ret_trail->failures + used, sizeof ret_trail->failures - used, "%s%s (%s)",
                 used > 0 ? ", " : "", ret_trail->path,
                 r == -ESTALE ? "another daemon answers there" : strerror(-r));
    }
    return r;
}

int question_ask(const struct address *address, uint64_t timeout_ns, const char *command,
                 struct reply **ret_reply) {
    _cleanup_(freep) char *line = NULL, *reason = NULL;
    struct question_trail trail;
    size_t length = 0;
    char request[64];

    snprintf(request, sizeof request, "{\"command\":\"%s\"}", command);
    int r = question_send(address, timeout_ns, request, &line, &length, &trail);
    return r < 0 ? r : reply_read(line, length, command, ret_reply, &reason);
}
