/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/answer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "client/ctl/address.h"
#include "client/ctl/command_line.h"
#include "client/ctl/question.h"
#include "client/ctl/terminal.h"
#include "client/ctl/text.h"
#include "client/session/socket.h"

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

void answer_deinit(struct answer *answer) {
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

int answer_ask(const struct options *options, const char *command, const char *request,
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

int answer_show(const struct options *options, const struct answer *answer,
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

int answer_refuse(const struct options *options, const char *code, const char *message) {
    if (options->json)
        printf("{\"error\":{\"code\":\"%s\",\"message\":\"%s\"}}\n", code, message);
    return finish_output(complain(EXIT_REFUSED, "%s", message));
}

int answer_confirm(const struct options *options, const char *question, const char *done) {
    char answer[16], message[128];

    if (options->yes)
        return EXIT_SUCCESS;
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        snprintf(message, sizeof message,
                 "nothing was %s: there is no terminal to ask on; add --yes to go on without a question",
                 done);
        return answer_refuse(options, "invalid-request", message);
    }
    fprintf(stderr, "%s [y/N] ", question);
    if (fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y'))
        return EXIT_SUCCESS;
    snprintf(message, sizeof message, "nothing was %s", done);
    return answer_refuse(options, "invalid-request", message);
}
