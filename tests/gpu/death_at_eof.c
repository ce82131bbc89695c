/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rule for dead processes as it must not be: over when the socket is. A daemon that is linked with this
 * in place of daemon/core/death.c lends memory that dead processes still write to; the tests of that rule
 * have to see it.
 */
#include "daemon/core/death.h"

#include <stdio.h>

enum death_rule death_rule(const struct death_facts *facts) {
    (void)facts;
    return DEATH_BY_END;
}

enum death_verdict death_judge(const struct death_facts *facts) {
    return facts->socket_over || facts->process_over ? DEATH_SAFE : DEATH_AWAITS_PROCESS;
}

const char *death_rule_name(enum death_rule rule) {
    (void)rule;
    return "process-end";
}

int death_explain(const struct death_facts *facts, pid_t pid, const char *list, char text[DEATH_TEXT_SIZE]) {
    (void)facts, (void)list;
    return snprintf(text, DEATH_TEXT_SIZE, "pid %d keeps its socket open", (int)pid);
}
