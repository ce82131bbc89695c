/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/drain.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/answer.h"
#include "client/ctl/command_line.h"
#include "client/ctl/view.h"

/* Between two looks at what is held. */
#define LOOK_NS (100 * NS_PER_MS)

static int ask(const struct options *options, struct answer *answer) {
    char pool[64] = "", request[128];

    if (options->pool != 0)
        snprintf(pool, sizeof pool, ",\"pool\":%" PRIu64, options->pool);
    snprintf(request, sizeof request, "{\"command\":\"drain\"%s%s}", pool,
             options->off ? ",\"off\":true" : "");
    return answer_ask(options, "drain", request, answer);
}

/* Looks at the pools without a change to them: another operator can end the drain. */
static int look(const struct options *options, uint64_t *ret_held_bytes, bool *ret_is_on) {
    _cleanup_(answer_deinit) struct answer answer = {0};

    int code = answer_ask(options, "pools", "{\"command\":\"pools\"}", &answer);
    if (code != EXIT_SUCCESS || answer.reply->error_code != NULL)
        return code != EXIT_SUCCESS ? code : answer_show(options, &answer, view_pools);
    *ret_held_bytes = 0;
    *ret_is_on = true;
    reply_each(pool, answer.reply->root, "pools") {
        if (options->pool != 0 && reply_count(pool, "id") != options->pool)
            continue;
        *ret_held_bytes += reply_count(pool, "leased_bytes") + reply_count(pool, "fenced_bytes") +
                           reply_count(pool, "quarantined_bytes");
        *ret_is_on = *ret_is_on && reply_flag(pool, "draining");
    }
    return EXIT_SUCCESS;
}

static int wait_for_end(const struct options *options) {
    uint64_t end_ns = clock_deadline_ns(clock_now_ns(), options->timeout_ns), held_bytes = 0;
    bool is_on = false;

    for (;;) {
        int code = look(options, &held_bytes, &is_on);
        if (code != EXIT_SUCCESS)
            return code;
        if (!is_on)
            return answer_refuse(options, "busy",
                                 "the pools drain no more: an operator ended it, or the daemon was "
                                 "restarted");
        if (held_bytes == 0 || clock_left_ns(end_ns) == 0)
            break;
        nanosleep(&(struct timespec){.tv_nsec = (long)LOOK_NS}, NULL);
    }
    _cleanup_(answer_deinit) struct answer answer = {0};
    int code = ask(options, &answer);
    if (code == EXIT_SUCCESS)
        code = answer_show(options, &answer, view_drain);
    return code != EXIT_SUCCESS || held_bytes == 0 ? code : EXIT_REFUSED;
}

/* Tells, once, of the memory that the drain waits for. */
static void tell_of_wait(const struct cJSON *reply) {
    uint64_t held_bytes = 0, named_bytes = 0;

    reply_each(pool, reply, "pools") {
        uint64_t named = reply_count(pool, "named_bytes");
        held_bytes += reply_count(pool, "held_bytes");
        named_bytes += named != REPLY_NULL ? named : 0;
    }
    if (held_bytes > 0)
        fprintf(
            stderr,
            "No more is lent. Waiting for %s, which come back as programs release them or end: 'gpupoolctl "
            "sessions' shows which. To wait no longer: Ctrl-C.\n",
            BYTES_TEXT(held_bytes));
    if (named_bytes > 0)
        fprintf(
            stderr,
            "Of that, names hold %s, and no program: 'gpupoolctl names' shows which, 'gpupoolctl unpublish' "
            "ends one.\n",
            BYTES_TEXT(named_bytes));
}

int drain_run(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0};

    int code = ask(options, &answer);
    if (code != EXIT_SUCCESS)
        return code;
    if (answer.reply->error_code != NULL || options->off || options->scope.no_wait)
        return answer_show(options, &answer, view_drain);
    tell_of_wait(answer.reply->root);
    return wait_for_end(options);
}
