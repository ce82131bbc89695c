/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpupoolctl: asks gpupoold's admin socket one thing and shows the answer, to people as tables and to
 * programs as the line of JSON that the daemon sent; "run" is apart from that (run.h). This file has the
 * commands that ask one thing, and what is told before one of them destroys something.
 */
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "base/units.h"
#include "client/ctl/address.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/answer.h"
#include "client/ctl/command_line.h"
#include "client/ctl/json.h"
#include "client/ctl/metrics.h"
#include "client/ctl/question.h"
#include "client/ctl/run.h"
#include "client/ctl/terminal.h"
#include "client/ctl/text.h"
#include "client/ctl/user.h"
#include "client/ctl/view.h"
#include "client/session/socket.h"

/* The daemon answers at once, or as soon as the driver has freed what trim gives back. */
#define TIMEOUT_DEFAULT_NS (10 * NS_PER_S)

/* Between two looks of top: as top(1). */
#define INTERVAL_DEFAULT_NS (3 * NS_PER_S)

/* --- what destroys something --- */

/* Warns of what it means to release memory from quarantine by force. */
static void warn_of_release(const struct cJSON *session) {
    const char *why = reply_text(session, "quarantine_reason");
    _cleanup_(freep) char *command = text_printable(reply_text(session, "command"), NULL);
    _cleanup_(freep) char *reason = text_printable(why == NULL ? "" : why, NULL);

    fprintf(stderr,
            "Session %" PRIu64 " (pid %" PRIu64 ", user %s, %s) holds %s: %s.\n"
            "Nothing shows that its GPU work is over. Memory that is released now is lent to other processes "
            "of the\n"
            "same user at once, and what is left of the dead process's work may overwrite it: their results "
            "can be\n"
            "wrong without any error. Better end what keeps it, if you can.\n",
            reply_count(session, "id"), reply_count(session, "pid"), user_text(reply_count(session, "uid")),
            command != NULL ? command : "?",
            BYTES_TEXT(reply_count(session, "leased_bytes") + reply_count(session, "fenced_bytes")),
            reason != NULL ? reason : "?");
}

/* Releases a session's memory from quarantine, after a warning and, without --yes, a question. */
static int run_release(const struct options *options) {
    _cleanup_(answer_deinit) struct answer list = {0}, done = {0};
    char request[96], message[128];

    int code = answer_ask(options, "quarantine", "{\"command\":\"quarantine\"}", &list);
    if (code != EXIT_SUCCESS)
        return code;
    if (list.reply->error_code != NULL)
        return answer_show(options, &list, view_quarantine);
    const struct cJSON *session = reply_first(list.reply->root, "sessions");
    while (session != NULL && reply_count(session, "id") != options->release)
        session = reply_next(session);
    if (session == NULL) {
        snprintf(message, sizeof message,
                 "session %" PRIu64 " is not in quarantine; 'gpupoolctl quarantine' lists those that are",
                 options->release);
        return answer_refuse(options, "no-such-session", message);
    }
    warn_of_release(session);
    code = answer_confirm(options, "Release it all the same?", "released");
    if (code != EXIT_SUCCESS)
        return code;
    snprintf(request, sizeof request, "{\"command\":\"quarantine-release\",\"session\":%" PRIu64 "}",
             options->release);
    code = answer_ask(options, "quarantine-release", request, &done);
    return code != EXIT_SUCCESS ? code : answer_show(options, &done, view_released);
}

/* Tells which parcels would end. False: the daemon told all there are, and none of them would. */
static bool tell_of_revocation(const struct options *options, const struct cJSON *list) {
    uint64_t n = 0, n_told = 0, bytes = 0, n_all = reply_count(list, "total");

    reply_each(parcel, list, "parcels") {
        n_told++;
        if (options->revoke != ALL_SENDERS && reply_count(parcel, "session") != options->revoke)
            continue;
        if (n++ == 0 && options->revoke != ALL_SENDERS)
            fprintf(stderr, "Session %" PRIu64 " (pid %" PRIu64 ", user %s): ", options->revoke,
                    reply_count(parcel, "pid"), user_text(reply_count(parcel, "uid")));
        bytes += reply_count(parcel, "bytes");
    }
    if (n_told < n_all) /* the others may be of any session */
        fprintf(stderr, "%s on the way in all. ", COUNT_TEXT(n_all, "buffer"));
    else if (n > 0)
        fprintf(stderr, "%s (%s) sent and not taken yet. ", COUNT_TEXT(n, "buffer"), BYTES_TEXT(bytes));
    if (n_told < n_all || n > 0)
        fputs("A process that wants to take one gets an error then.\n", stderr);
    return n_told < n_all || n > 0;
}

/* Ends parcels, after a question, unless --yes was given. */
static int run_revoke(const struct options *options) {
    _cleanup_(answer_deinit) struct answer list = {0}, done = {0};
    char request[96] = "{\"command\":\"parcels-revoke\"}";
    int code = EXIT_SUCCESS;

    if (!options->yes) {
        code = answer_ask(options, "parcels", "{\"command\":\"parcels\"}", &list);
        if (code != EXIT_SUCCESS)
            return code;
        if (list.reply->error_code != NULL)
            return answer_show(options, &list, view_parcels);
        if (tell_of_revocation(options,
                               list.reply->root)) /* else the daemon knows whether there is the session */
            code = answer_confirm(options, "Revoke them?", "revoked");
        if (code != EXIT_SUCCESS)
            return code;
    }
    if (options->revoke != ALL_SENDERS)
        snprintf(request, sizeof request, "{\"command\":\"parcels-revoke\",\"session\":%" PRIu64 "}",
                 options->revoke);
    code = answer_ask(options, "parcels-revoke", request, &done);
    return code != EXIT_SUCCESS ? code : answer_show(options, &done, view_revoked);
}

/* Ends a session, after a question, unless --yes was given. */
static int run_session_end(const struct options *options) {
    _cleanup_(answer_deinit) struct answer done = {0};
    char request[96], question[96];

    snprintf(question, sizeof question, "End session %" PRIu64 "? All calls of its process fail then.",
             options->session);
    int code = answer_confirm(options, question, "ended");
    if (code != EXIT_SUCCESS)
        return code;
    snprintf(request, sizeof request, "{\"command\":\"session-end\",\"session\":%" PRIu64 "}",
             options->session);
    code = answer_ask(options, "session-end", request, &done);
    return code != EXIT_SUCCESS ? code : answer_show(options, &done, view_session_end);
}

/* Metrics are made of several replies. Those of scopes are for operators. */
static int run_metrics(const struct options *options) {
    _cleanup_(answer_deinit) struct answer stats = {0}, quotas = {0}, scopes = {0};

    if (options->json)
        return answer_refuse(options, "invalid-request",
                             "metrics have a format of their own: leave --json out");
    int code = answer_ask(options, "stats", "{\"command\":\"stats\"}", &stats);
    if (code == EXIT_SUCCESS && stats.reply->error_code != NULL)
        return answer_show(options, &stats, view_stats);
    if (code == EXIT_SUCCESS)
        code = answer_ask(options, "quota", "{\"command\":\"quota\"}", &quotas);
    if (code == EXIT_SUCCESS && quotas.reply->error_code != NULL)
        return answer_show(options, &quotas, view_quota);
    if (code == EXIT_SUCCESS)
        code = answer_ask(options, "scopes", "{\"command\":\"scopes\"}", &scopes);
    if (code != EXIT_SUCCESS)
        return code;
    metrics_print(stdout, stats.reply->root, quotas.reply->root,
                  scopes.reply->error_code == NULL ? scopes.reply->root : NULL);
    return finish_output(EXIT_SUCCESS);
}

static int run(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0};
    char request[64];

    if (options->release != 0)
        return run_release(options);
    if (options->revoke != 0)
        return run_revoke(options);
    if (options->command->run != NULL)
        return options->command->run(options);
    if (options->command->words != NULL)
        return run_session_end(options);
    if (options->command->is_metrics)
        return run_metrics(options);
    if (options->pool != 0)
        snprintf(request, sizeof request, "{\"command\":\"%s\",\"pool\":%" PRIu64 "}", options->command->name,
                 options->pool);
    else if (options->session != 0)
        snprintf(request, sizeof request, "{\"command\":\"%s\",\"session\":%" PRIu64 "}",
                 options->command->name, options->session);
    else
        snprintf(request, sizeof request, "{\"command\":\"%s\"}", options->command->name);
    int code = answer_ask(options, options->command->name, request, &answer);
    if (code == EXIT_SUCCESS)
        code = answer_show(options, &answer, options->command->view);
    if (code == EXIT_SUCCESS && options->command->view == view_reload &&
        !reply_flag(answer.reply->root, "applied"))
        code = EXIT_REFUSED;
    return code;
}

/* Whether the environment says which characters the terminal knows. Where it does not, they are those of
 * UTF-8, as in the daemon's texts. */
static bool names_a_locale(void) {
    static const char *const variables[] = {"LC_ALL", "LC_CTYPE", "LANG"};

    for (size_t i = 0; i < ARRAY_LENGTH(variables); i++) {
        const char *value = getenv(variables[i]);
        if (value != NULL && value[0] != '\0')
            return true;
    }
    return false;
}

int main(int argc, char **argv) {
    struct options options = {
        .timeout_ns = TIMEOUT_DEFAULT_NS, .interval_ns = INTERVAL_DEFAULT_NS, .filter.uid = USER_NONE};

    if (standard_streams_fill(O_RDONLY) < 0) /* a socket among them would be printed to */
        return complain(EXIT_REFUSED, "/dev/null: %s", strerror(errno));
    /* Only the characters are the user's: numbers keep their point, for the reader of JSON too. */
    if (setlocale(LC_CTYPE, "") == NULL || !names_a_locale())
        setlocale(LC_CTYPE, "C.UTF-8");
    if (argc > 1 && strcmp(argv[1], "run") == 0)
        return run_program(argc - 1, argv + 1);
    int code = command_line_read(argc, argv, &options);
    if (code >= 0)
        return code;
    if (options.command->is_of_records)
        return options.command->run(&options);
    code = address_find(&options.address, options.admin_socket, options.timeout_ns, EXIT_UNREACHABLE);
    return code != 0 ? code : run(&options);
}
