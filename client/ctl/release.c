/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/release.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "client/ctl/text.h"

const struct reply_session *release_find(const struct reply *reply, uint64_t id) {
    for (size_t i = 0; i < reply->n_sessions; i++)
        if (reply->sessions[i].id == id)
            return &reply->sessions[i];
    return NULL;
}

void release_warn(const struct reply_session *session) {
    _cleanup_(freep) char *command = text_printable(session->command, NULL);
    _cleanup_(freep) char *reason =
        text_printable(session->quarantine_reason == NULL ? "" : session->quarantine_reason, NULL);

    fprintf(stderr,
            "Session %" PRIu64 " (pid %" PRIu64 ", uid %" PRIu64 ", %s) holds %s: %s.\n"
            "Nothing shows that its GPU work is over. Memory that is released now is lent to other processes "
            "of the\n"
            "same user at once, and what is left of the dead process's work may overwrite it: their results "
            "can be\n"
            "wrong without any error. Better end what keeps it, if you can.\n",
            session->id, session->pid, session->uid, command != NULL ? command : "?",
            BYTES_TEXT(session->leased_bytes + session->fenced_bytes), reason != NULL ? reason : "?");
}

bool release_can_ask(void) {
    return isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
}

bool release_confirm(void) {
    char answer[16];

    fputs("Release it all the same? [y/N] ", stderr);
    return fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}
