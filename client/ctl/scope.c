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

static int run_add(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0};
    struct cJSON *request = json_request_new("scope-add");

    int code = fill_in(request, &options->scope);
    _cleanup_(freep) char *line = json_request_line(request);
    if (code != EXIT_SUCCESS)
        return code;
    if (line == NULL)
        return out_of_memory();
    code = answer_ask(options, "scope-add", line, &answer);
    return code != EXIT_SUCCESS ? code : answer_show(options, &answer, view_scope_added);
}

/* Tells, once, what a dropped scope waits for. */
static void tell_of_wait(const struct options *options, const struct cJSON *left) {
    fprintf(
        stderr,
        "No process comes into scope '%s' any more. Waiting for the end of %s: 'gpupoolctl sessions' shows "
        "which,\n"
        "--end ends them. To wait no longer: Ctrl-C.\n",
        options->scope.name, COUNT_TEXT(reply_count(left, "sessions"), "session"));
}

static bool is_refusal(const struct answer *answer, const char *code) {
    const char *error = answer->reply->error_code;
    return error != NULL && strcmp(error, code) == 0;
}

static int run_drop(const struct options *options) {
    const struct timespec pause = {.tv_nsec = (long)LOOK_NS};
    struct cJSON *request = json_request_new("scope-drop");
    struct answer answer = {0};
    bool is_first = true, is_over = false;
    int code = EXIT_SUCCESS;

    json_request_add_text(request, NULL, "scope", options->scope.name);
    json_request_add_flag(request, "end", options->scope.end);
    _cleanup_(freep) char *line = json_request_line(request);
    if (line == NULL)
        return out_of_memory();
    while (!is_over) {
        struct answer next = {0};
        code = answer_ask(options, "scope-drop", line, &next);
        if (code != EXIT_SUCCESS)
            break;
        is_over = next.reply->error_code != NULL || reply_flag(next.reply->root, "is_gone") ||
                  options->scope.no_wait;
        if (!is_first && is_refusal(&next, "no-such-scope")) { /* gone since the last look */
            answer_deinit(&next);
            answer_deinit(&answer);
            if (options->json)
                puts("{\"is_gone\":true,\"left\":null}");
            else
                printf("Scope '%s' is gone.\n", options->scope.name);
            return finish_output(EXIT_SUCCESS);
        }
        answer_deinit(&answer);
        answer = next;
        if (is_over)
            break;
        if (is_first)
            tell_of_wait(options, reply_object(answer.reply->root, "left"));
        is_first = false;
        nanosleep(&pause, NULL);
    }
    if (code == EXIT_SUCCESS)
        code = answer_show(options, &answer, view_scope_dropped);
    answer_deinit(&answer);
    return code;
}

int scope_run(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0};

    if (options->scope.verb == SCOPE_ADD)
        return run_add(options);
    if (options->scope.verb == SCOPE_DROP)
        return run_drop(options);
    int code = answer_ask(options, "scopes", "{\"command\":\"scopes\"}", &answer);
    return code != EXIT_SUCCESS ? code : answer_show(options, &answer, view_scopes);
}
