/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/death.h"

#include <stdio.h>

enum death_rule death_rule(const struct death_facts *facts) {
    if (facts->no_gpu_work)
        return DEATH_BY_END;
    if (facts->seen && !facts->under_mps && facts->listing != LISTING_UNKNOWN)
        return DEATH_BY_LISTING;
    return DEATH_BY_HOLDERS;
}

static enum death_verdict judge_holders(const struct death_facts *facts) {
    /* A list that can tell may know better; one that cannot is not waited for. */
    if (facts->listing == LISTING_NOT_ASKED)
        return DEATH_AWAITS_LISTING;
    if (facts->listing == LISTING_PRESENT)
        return DEATH_LISTED;
    if (!facts->socket_over)
        return DEATH_AWAITS_SOCKET;
    switch (facts->holders) {
    case HOLDERS_NOT_LOOKED:
        return DEATH_AWAITS_HOLDERS;
    case HOLDERS_NONE:
        return DEATH_SAFE;
    case HOLDERS_SOME:
        return DEATH_HELD;
    case HOLDERS_HIDDEN:
        return DEATH_HIDDEN;
    case HOLDERS_UNKNOWN:
        break;
    }
    return DEATH_UNKNOWABLE;
}

enum death_verdict death_judge(const struct death_facts *facts) {
    if (!facts->process_over)
        return DEATH_AWAITS_PROCESS;
    switch (death_rule(facts)) {
    case DEATH_BY_END:
        return DEATH_SAFE;
    case DEATH_BY_LISTING:
        return facts->listing == LISTING_PRESENT  ? DEATH_LISTED
               : facts->listing == LISTING_ABSENT ? DEATH_SAFE
                                                  : DEATH_AWAITS_LISTING;
    case DEATH_BY_HOLDERS:
        break;
    }
    return judge_holders(facts);
}

const char *death_rule_name(enum death_rule rule) {
    static const char *const names[] = {"process-end", "listing", "descriptors"};
    return names[rule];
}

/* Names the process that holds the memory behind a text about the dead one, where a look has found it. */
static int add_holder(const struct death_facts *facts, pid_t pid, char text[DEATH_TEXT_SIZE], int length) {
    if (facts->holder <= 0 || facts->holder_path[0] == '\0' || length < 0 || length >= (int)DEATH_TEXT_SIZE)
        return length;
    return length + snprintf(text + length, DEATH_TEXT_SIZE - (size_t)length,
                             "; pid %d (%s), which may be a child of pid %d, holds %s", (int)facts->holder,
                             facts->holder_name, (int)pid, facts->holder_path);
}

int death_explain(const struct death_facts *facts, pid_t pid, const char *list, char text[DEATH_TEXT_SIZE]) {
    switch (death_judge(facts)) {
    case DEATH_SAFE:
        return snprintf(text, DEATH_TEXT_SIZE, "nothing: it is over");
    case DEATH_AWAITS_PROCESS:
        return snprintf(text, DEATH_TEXT_SIZE, "its process (pid %d) has not ended", (int)pid);
    case DEATH_AWAITS_LISTING:
        return snprintf(text, DEATH_TEXT_SIZE, "%s is being asked whether it still lists pid %d", list,
                        (int)pid);
    case DEATH_LISTED:
        return add_holder(facts, pid, text,
                          snprintf(text, DEATH_TEXT_SIZE, "pid %d is still listed by %s", (int)pid, list));
    case DEATH_AWAITS_SOCKET:
        return add_holder(
            facts, pid, text,
            snprintf(text, DEATH_TEXT_SIZE, "a child of pid %d keeps its socket open", (int)pid));
    case DEATH_AWAITS_HOLDERS:
        return snprintf(text, DEATH_TEXT_SIZE,
                        "processes that may hold the driver's descriptors of pid %d are being "
                        "looked for",
                        (int)pid);
    case DEATH_HELD:
        return snprintf(text, DEATH_TEXT_SIZE, "pid %d (%s), which may be a child of pid %d, holds %s",
                        (int)facts->holder, facts->holder_name, (int)pid, facts->holder_path);
    case DEATH_HIDDEN:
        return snprintf(
            text, DEATH_TEXT_SIZE,
            "pid %d (%s), which may be a child of pid %d, cannot be looked into for the driver's descriptors",
            (int)facts->holder, facts->holder_name, (int)pid);
    case DEATH_UNKNOWABLE:
        break;
    }
    return snprintf(
        text, DEATH_TEXT_SIZE,
        "nobody can tell whether its GPU work is over (no list has it, and /proc does not show who holds "
        "the driver's descriptors): until an operator releases it");
}
