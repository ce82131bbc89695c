/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/scope.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/answer.h"
#include "client/ctl/command_line.h"
#include "client/ctl/text.h"
#include "client/ctl/user.h"
#include "client/ctl/view.h"

/* Between two looks whether a scope is gone. */
#define LOOK_NS (200 * NS_PER_MS)

static int out_of_memory(void) {
    return complain(EXIT_REFUSED, "%s", strerror(ENOMEM));
}

/* Adds NAME=VALUE to an object of the request. */
static int add_pair(struct cJSON *request, const char *object, const char *option, const char *pair) {
    const char *value = strchr(pair, '=');

    if (value == NULL || value == pair)
        return complain(EXIT_USAGE, "--%s: '%s' is not of the form NAME=VALUE", option, pair);
    _cleanup_(freep) char *name = strndup(pair, (size_t)(value - pair));
    if (name == NULL)
        return out_of_memory();
    json_request_add_text(request, object, name, value + 1);
    return EXIT_SUCCESS;
}

static int fill_in(struct cJSON *request, const struct scope_options *scope) {
    int code = EXIT_SUCCESS;
    uint64_t uid;

    json_request_add_text(request, NULL, "scope", scope->name);
    for (unsigned i = 0; i < scope->n_uids && code == EXIT_SUCCESS; i++)
        if (user_find(scope->uids[i], &uid) < 0)
            code = complain(EXIT_USAGE, "--uid: there is no user '%s'", scope->uids[i]);
        else
            json_request_add_to_array(request, "uids", uid);
    for (unsigned i = 0; i < scope->n_quotas && code == EXIT_SUCCESS; i++)
        code = add_pair(request, "quota", "quota", scope->quotas[i]);
    for (unsigned i = 0; i < scope->n_labels && code == EXIT_SUCCESS; i++)
        code = add_pair(request, "labels", "label", scope->labels[i]);
    return code;
}

/* Adds a scope, or gives one what the options name. */
static int run_add(const struct options *options, const char *command,
                   void (*view)(struct output *output, const struct cJSON *reply)) {
    _cleanup_(answer_deinit) struct answer answer = {0};
    struct cJSON *request = json_request_new(command);

    int code = fill_in(request, &options->scope);
    _cleanup_(freep) char *line = json_request_line(request);
    if (code != EXIT_SUCCESS)
        return code;
    if (line == NULL)
        return out_of_memory();
    code = answer_ask(options, command, line, &answer);
    return code != EXIT_SUCCESS ? code : answer_show(options, &answer, view);
}

/* Tells, once, what a dropped scope waits for. */
static void tell_of_wait(const struct options *options, const struct cJSON *left) {
    uint64_t sessions = reply_count(left, "sessions");

    fprintf(stderr, "No process comes into scope '%s' any more. Waiting for the end of ",
            options->scope.name);
    if (sessions == 0)
        fputs("replies that were not read, or of memory that a device holds", stderr);
    else if (options->scope.end)
        fprintf(stderr, "the processes of %s: 'gpupoolctl quarantine' shows which have to end",
                COUNT_TEXT(sessions, "session"));
    else
        fprintf(stderr, "%s: 'gpupoolctl sessions' shows which, --end ends them",
                COUNT_TEXT(sessions, "session"));
    fputs(".\nTo wait no longer: Ctrl-C.\n", stderr);
}

/* Whether there is the scope of a number, still. Returns EXIT_SUCCESS and that, or the code to exit with. */
static int look_for(const struct options *options, uint64_t id, bool *ret_is_there) {
    _cleanup_(answer_deinit) struct answer answer = {0};

    *ret_is_there = false;
    int code = answer_ask(options, "scopes", "{\"command\":\"scopes\"}", &answer);
    if (code == EXIT_SUCCESS && answer.reply->error_code != NULL)
        return answer_show(options, &answer, view_scopes);
    if (code == EXIT_SUCCESS)
        reply_each(scope, answer.reply->root, "scopes") *ret_is_there =
            *ret_is_there || reply_count(scope, "id") == id;
    return code;
}

/* A scope that was dropped and is made anew has another number. */
static int wait_for_end(const struct options *options, const struct cJSON *left) {
    const struct timespec pause = {.tv_nsec = (long)LOOK_NS};
    uint64_t id = reply_count(left, "id");
    int code = EXIT_SUCCESS;

    tell_of_wait(options, left);
    for (bool is_there = true; is_there && code == EXIT_SUCCESS;) {
        nanosleep(&pause, NULL);
        code = look_for(options, id, &is_there);
    }
    if (code != EXIT_SUCCESS)
        return code;
    puts(options->json ? "{\"is_gone\":true,\"left\":null}" : "The scope is gone.");
    return finish_output(EXIT_SUCCESS);
}

static int run_drop(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0};
    struct cJSON *request = json_request_new("scope-drop");

    json_request_add_text(request, NULL, "scope", options->scope.name);
    json_request_add_flag(request, "end", options->scope.end);
    _cleanup_(freep) char *line = json_request_line(request);
    if (line == NULL)
        return out_of_memory();
    int code = answer_ask(options, "scope-drop", line, &answer);
    if (code != EXIT_SUCCESS)
        return code;
    if (answer.reply->error_code != NULL || reply_flag(answer.reply->root, "is_gone") ||
        options->scope.no_wait)
        return answer_show(options, &answer, view_scope_dropped);
    return wait_for_end(options, reply_object(answer.reply->root, "left"));
}

int scope_run(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0};

    if (options->scope.verb == SCOPE_ADD)
        return run_add(options, "scope-add", view_scope_added);
    if (options->scope.verb == SCOPE_SET)
        return run_add(options, "scope-set", view_scope_set);
    if (options->scope.verb == SCOPE_DROP)
        return run_drop(options);
    int code = answer_ask(options, "scopes", "{\"command\":\"scopes\"}", &answer);
    return code != EXIT_SUCCESS ? code : answer_show(options, &answer, view_scopes);
}
