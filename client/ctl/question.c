/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/question.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/ctl/address.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/json.h"

int question_ask(const struct address *address, uint64_t timeout_ns, const char *command,
                 struct reply **ret_reply) {
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), timeout_ns);
    char request[128];
    int r = -ENOENT;

    if (address->identity[0] != '\0')
        snprintf(request, sizeof request, "{\"daemon\":\"%s\",\"command\":\"%s\"}", address->identity,
                 command);
    else
        snprintf(request, sizeof request, "{\"command\":\"%s\"}", command);
    for (unsigned i = 0; i < address->n_paths; i++) {
        _cleanup_(freep) char *line = NULL, *reason = NULL;
        size_t length = 0;
        r = admin_ask(address->paths[i], deadline_ns, request, &line, &length);
        if (r == 0)
            r = reply_read(line, length, command, ret_reply, &reason);
        if (r == 0 && (*ret_reply)->error_code != NULL &&
            strcmp((*ret_reply)->error_code, "other-daemon") == 0) {
            *ret_reply = reply_free(*ret_reply);
            r = -ENOENT;
        }
        if (r == 0)
            return 0;
    }
    return r;
}
