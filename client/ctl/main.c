/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpupoolctl: asks gpupoold's admin socket one thing and shows the answer, to people as tables and to
 * programs as the line of JSON that the daemon sent; "run" is apart from that (run.h). This file has the
 * exchange, the questions before a command destroys something, and what is said when something goes wrong.
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

static int unreachable(const struct options *options, const char *path, int error) {
    switch (-error) {
    case ENOENT:
    case ECONNREFUSED:
        if (socket_is_other_file(path))
            return complain(EXIT_UNREACHABLE,
                            "%s is not a socket: name gpupoold's admin socket with --admin-socket", path);
        return complain(
            EXIT_UNREACHABLE,
            "no gpupoold answers at %s: start it (systemctl start gpupoold), or name its admin socket with "
            "--admin-socket",
            path);
    case EACCES:
    case EPERM:
        return complain(
            EXIT_UNREACHABLE,
            "this user may not connect to %s: ask its owner for access, or run gpupoolctl as that user",
            path);
    case ENAMETOOLONG:
        return complain(EXIT_UNREACHABLE, "%s: no socket can have so long a path; name it with a shorter one",
                        path);
    case EPROTOTYPE:
        return complain(
            EXIT_UNREACHABLE,
            "%s is not an admin socket (the data socket, perhaps): name the admin socket with --admin-socket",
            path);
    case ETIMEDOUT:
        return complain(
            EXIT_UNREACHABLE,
            "gpupoold at %s did not answer within %s: look at its log, or wait longer with --timeout", path,
            NS_TEXT(options->timeout_ns));
    case ECONNRESET:
        return complain(EXIT_UNREACHABLE,
                        "gpupoold at %s hung up before it had answered: it is stopping, or its log says why",
                        path);
    case EMSGSIZE:
    case EBADMSG:
        return complain(EXIT_UNREACHABLE,
                        "what answers at %s does not speak gpupoold's admin protocol: check the path", path);
    default:
        return complain(EXIT_UNREACHABLE, "cannot talk to gpupoold at %s: %s", path, strerror(-error));
    }
}

/* An answer of the daemon's, read and as it came. */
struct answer {
    struct reply *reply;
    char *line;
    size_t length;
};

static void answer_deinit(struct answer *answer) {
    answer->reply = reply_free(answer->reply);
    free(answer->line);
    answer->line = NULL;
}

/* Asks at the places where the daemon may be. Returns 0 and the line that it answers, or the code to exit
 * with. *ret_path: where it answered, or the last place. */
static int ask_places(const struct options *options, const char *request, const char **ret_path,
                      char **ret_line, size_t *ret_length) {
    const struct address *address = &options->address;
    struct question_trail trail;

    int r = question_send(address, options->timeout_ns, request, ret_line, ret_length, &trail);
    *ret_path = trail.path;
    if (r == 0)
        return 0;
    if (address->data_path == NULL)
        return unreachable(options, trail.path, r);
    return complain(
        EXIT_UNREACHABLE,
        "the daemon %s of %s does not answer at its admin socket, which was looked for at %s: name "
        "it with --admin-socket",
        address->identity, address->data_path, trail.failures);
}

/* Asks the daemon one thing. Returns EXIT_SUCCESS and the answer, or the code to exit with. */
static int ask(const struct options *options, const char *command, const char *request,
               struct answer *ret_answer) {
    _cleanup_(freep) char *line = NULL, *reason = NULL;
    const char *path = options->address.paths[0];
    size_t length = 0;

    int r = ask_places(options, request, &path, &line, &length);
    if (r != 0)
        return r;
    r = reply_read(line, length, command, &ret_answer->reply, &reason);
    if (r == -EBADMSG)
        return complain(
            EXIT_UNREACHABLE,
            "gpupoold at %s sent a reply that does not check out (%s): are daemon and gpupoolctl of "
            "the same version?",
            path, reason);
    if (r < 0)
        return complain(EXIT_REFUSED, "%s", strerror(-r));
    ret_answer->line = take_ptr(&line);
    ret_answer->length = length;
    return EXIT_SUCCESS;
}

static int show(const struct options *options, const struct answer *answer,
                void (*view)(struct output *output, const struct cJSON *reply)) {
    const struct reply *reply = answer->reply;
    struct output output = {.color = terminal_has_color(options->color), .width = terminal_width()};

    if (options->json)
        text_write_json(answer->line, answer->length);
    if (reply->error_code != NULL)
        return finish_output(
            complain(EXIT_REFUSED, "gpupoold refused: %s (%s)", reply->error_message, reply->error_code));
    if (!options->json)
        view(&output, reply->root);
    return finish_output(output.failed ? complain(EXIT_REFUSED, "%s", strerror(ENOMEM)) : EXIT_SUCCESS);
}

/* The tool itself refuses: as the daemon would, with --json as an object too. */
static int refuse(const struct options *options, const char *code, const char *message) {
    if (options->json)
        printf("{\"error\":{\"code\":\"%s\",\"message\":\"%s\"}}\n", code, message);
    return finish_output(complain(EXIT_REFUSED, "%s", message));
}

/* --- what destroys something --- */

/* Asks before something is destroyed, unless --yes was given. Returns EXIT_SUCCESS to go on, or the code to
 * exit with. done: what would be, such as "released". */
static int confirm(const struct options *options, const char *question, const char *done) {
    char answer[16], message[128];

    if (options->yes)
        return EXIT_SUCCESS;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        snprintf(message, sizeof message,
                 "nothing was %s: there is no terminal to ask on; add --yes to go on without a question",
                 done);
        return refuse(options, "invalid-request", message);
    }
    fprintf(stderr, "%s [y/N] ", question);
    if (fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y'))
        return EXIT_SUCCESS;
    snprintf(message, sizeof message, "nothing was %s", done);
    return refuse(options, "invalid-request", message);
}

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

    int code = ask(options, "quarantine", "{\"command\":\"quarantine\"}", &list);
    if (code != EXIT_SUCCESS)
        return code;
    if (list.reply->error_code != NULL)
        return show(options, &list, view_quarantine);
    const struct cJSON *session = reply_first(list.reply->root, "sessions");
    while (session != NULL && reply_count(session, "id") != options->release)
        session = reply_next(session);
    if (session == NULL) {
        snprintf(message, sizeof message,
                 "session %" PRIu64 " is not in quarantine; 'gpupoolctl quarantine' lists those that are",
                 options->release);
        return refuse(options, "no-such-session", message);
    }
    warn_of_release(session);
    code = confirm(options, "Release it all the same?", "released");
    if (code != EXIT_SUCCESS)
        return code;
    snprintf(request, sizeof request, "{\"command\":\"quarantine-release\",\"session\":%" PRIu64 "}",
             options->release);
    code = ask(options, "quarantine-release", request, &done);
    return code != EXIT_SUCCESS ? code : show(options, &done, view_released);
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
        code = ask(options, "parcels", "{\"command\":\"parcels\"}", &list);
        if (code != EXIT_SUCCESS)
            return code;
        if (list.reply->error_code != NULL)
            return show(options, &list, view_parcels);
        if (tell_of_revocation(options,
                               list.reply->root)) /* else the daemon knows whether there is the session */
            code = confirm(options, "Revoke them?", "revoked");
        if (code != EXIT_SUCCESS)
            return code;
    }
    if (options->revoke != ALL_SENDERS)
        snprintf(request, sizeof request, "{\"command\":\"parcels-revoke\",\"session\":%" PRIu64 "}",
                 options->revoke);
    code = ask(options, "parcels-revoke", request, &done);
    return code != EXIT_SUCCESS ? code : show(options, &done, view_revoked);
}

/* Ends a session, after a question, unless --yes was given. */
static int run_session_end(const struct options *options) {
    _cleanup_(answer_deinit) struct answer done = {0};
    char request[96], question[96];

    snprintf(question, sizeof question, "End session %" PRIu64 "? All calls of its process fail then.",
             options->session);
    int code = confirm(options, question, "ended");
    if (code != EXIT_SUCCESS)
        return code;
    snprintf(request, sizeof request, "{\"command\":\"session-end\",\"session\":%" PRIu64 "}",
             options->session);
    code = ask(options, "session-end", request, &done);
    return code != EXIT_SUCCESS ? code : show(options, &done, view_session_end);
}

/* Metrics are made of two replies. */
static int run_metrics(const struct options *options) {
    _cleanup_(answer_deinit) struct answer stats = {0}, quotas = {0};

    if (options->json)
        return refuse(options, "invalid-request", "metrics have a format of their own: leave --json out");
    int code = ask(options, "stats", "{\"command\":\"stats\"}", &stats);
    if (code == EXIT_SUCCESS && stats.reply->error_code != NULL)
        return show(options, &stats, view_stats);
    if (code == EXIT_SUCCESS)
        code = ask(options, "quota", "{\"command\":\"quota\"}", &quotas);
    if (code == EXIT_SUCCESS && quotas.reply->error_code != NULL)
        return show(options, &quotas, view_quota);
    if (code != EXIT_SUCCESS)
        return code;
    metrics_print(stdout, stats.reply->root, quotas.reply->root);
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
    int code = ask(options, options->command->name, request, &answer);
    if (code == EXIT_SUCCESS)
        code = show(options, &answer, options->command->view);
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
