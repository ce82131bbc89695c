/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/release.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "client/ctl/text.h"

const struct cJSON *release_find(const struct cJSON *reply, uint64_t id) {
    reply_each(session, reply, "sessions") if (reply_count(session, "id") == id) return session;
    return NULL;
}

void release_warn(const struct cJSON *session) {
    const char *why = reply_text(session, "quarantine_reason");
    _cleanup_(freep) char *command = text_printable(reply_text(session, "command"), NULL);
    _cleanup_(freep) char *reason = text_printable(why == NULL ? "" : why, NULL);

    fprintf(stderr,
            "Session %" PRIu64 " (pid %" PRIu64 ", uid %" PRIu64 ", %s) holds %s: %s.\n"
            "Nothing shows that its GPU work is over. Memory that is released now is lent to other processes "
            "of the\n"
            "same user at once, and what is left of the dead process's work may overwrite it: their results "
            "can be\n"
            "wrong without any error. Better end what keeps it, if you can.\n",
            reply_count(session, "id"), reply_count(session, "pid"), reply_count(session, "uid"),
            command != NULL ? command : "?",
            BYTES_TEXT(reply_count(session, "leased_bytes") + reply_count(session, "fenced_bytes")),
            reason != NULL ? reason : "?");
}

bool release_can_ask(void) {
    return isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
}

bool release_confirm(void) {
    char answer[16];

    fputs("Release it all the same? [y/N] ", stderr);
    return fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}
