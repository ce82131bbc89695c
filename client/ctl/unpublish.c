/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/unpublish.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "client/ctl/answer.h"
#include "client/ctl/command_line.h"
#include "client/ctl/text.h"
#include "client/ctl/user.h"
#include "client/ctl/view.h"

/* The user whose name is meant: the one that --uid names, or else the tool's own. */
static int find_owner(const struct options *options, uint64_t *ret_uid) {
    const struct scope_options *given = &options->scope;

    *ret_uid = geteuid();
    if (given->n_uids > 1)
        return complain(EXIT_USAGE, "--uid: a name is one user's");
    if (given->n_uids == 1 && user_find(given->uids[0], ret_uid) < 0)
        return complain(EXIT_USAGE, "--uid: there is no user '%s'", given->uids[0]);
    return EXIT_SUCCESS;
}

static bool is_meant(const struct cJSON *name, const struct options *options, uint64_t uid) {
    const char *scope = reply_text(name, "scope"), *wanted = options->filter.scope;

    return strcmp(reply_text(name, "name"), options->name) == 0 && reply_count(name, "uid") == uid &&
           (scope == NULL) == (wanted == NULL) && (scope == NULL || strcmp(scope, wanted) == 0);
}

/* Tells what the name stands for. False: the daemon told all names there are, and it is none of them. */
static bool tell_of_name(const struct options *options, const struct cJSON *list, uint64_t uid) {
    uint64_t n_told = 0;

    reply_each(name, list, "names") {
        n_told++;
        if (!is_meant(name, options, uid))
            continue;
        if (reply_count(name, "generation") == REPLY_NULL)
            return false;
        if (reply_flag(name, "channel")) {
            fprintf(stderr,
                    "It stands for a channel of %s. No process can join it then. Processes that are in it go "
                    "on until they leave it.\n",
                    BYTES_TEXT(reply_count(name, "bytes")));
            return true;
        }
        fprintf(stderr, "It stands for %s in %s, which %s. A process that opens it gets an error then.\n",
                BYTES_TEXT(reply_count(name, "bytes")), COUNT_TEXT(reply_count(name, "buffers"), "buffer"),
                reply_count(name, "holders") == 0 ? "no process has" : "processes have until they close it");
        return true;
    }
    return n_told < reply_count(list, "total");
}

/* The request's line, owned by the caller; NULL: no memory. */
static char *request_line(const struct options *options, uint64_t uid) {
    struct cJSON *request = json_request_new("unpublish");

    json_request_add_text(request, NULL, "name", options->name);
    if (options->scope.n_uids > 0)
        json_request_add_count(request, "uid", uid);
    if (options->filter.scope != NULL)
        json_request_add_text(request, NULL, "scope", options->filter.scope);
    return json_request_line(request);
}

int unpublish_run(const struct options *options) {
    _cleanup_(answer_deinit) struct answer list = {0}, done = {0};
    char question[256];
    uint64_t uid;

    int code = find_owner(options, &uid);
    if (code == EXIT_SUCCESS && !options->yes) {
        code = answer_ask(options, "names", "{\"command\":\"names\"}", &list);
        if (code == EXIT_SUCCESS && list.reply->error_code != NULL)
            return answer_show(options, &list, view_names);
        _cleanup_(freep) char *printable = text_printable(options->name, NULL);
        snprintf(question, sizeof question, "Unpublish '%s'?", printable != NULL ? printable : "?");
        if (code == EXIT_SUCCESS &&
            tell_of_name(options, list.reply->root, uid)) /* else the daemon says that there is none */
            code = answer_confirm(options, question, "unpublished");
    }
    if (code != EXIT_SUCCESS)
        return code;
    _cleanup_(freep) char *line = request_line(options, uid);
    if (line == NULL)
        return complain(EXIT_REFUSED, "there is no memory");
    code = answer_ask(options, "unpublish", line, &done);
    return code != EXIT_SUCCESS ? code : answer_show(options, &done, view_unpublished);
}
