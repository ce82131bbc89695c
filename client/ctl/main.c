/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpupoolctl: asks gpupoold's admin socket one thing and shows the answer, to people as tables and to
 * programs as the line of JSON that the daemon sent; "run" is apart from that (run.h). This file has the
 * options, the commands and what is said when something goes wrong.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "base/units.h"
#include "client/ctl/admin_client.h"
#include "client/ctl/json.h"
#include "client/ctl/run.h"
#include "client/ctl/text.h"
#include "client/ctl/view.h"

#define ADMIN_SOCKET_DEFAULT "/run/gpupool/admin.sock"

/* The daemon answers at once, or as soon as the driver has freed what trim gives back. */
#define TIMEOUT_DEFAULT_NS (10 * NS_PER_S)

/* JSON's numbers are exact up to this one. */
#define SESSION_ID_MAX (UINT64_C(1) << 53)

enum exit_code {
    EXIT_REFUSED = 1, /* the daemon refused, or the answer could not be written */
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
};

struct command {
    const char *name;
    void (*view)(struct output *output, const struct cJSON *reply);
};

static const struct command commands[] = {
    {"stats", view_stats},
    {"pools", view_pools},
    {"sessions", view_sessions},
    {"quota", view_quota},
    {"quarantine", view_quarantine},
    {"parcels", view_parcels},
    {"config", view_config},
    {"trim", view_trim},
    {"ping", view_ping},
};

#define ALL_SENDERS UINT64_MAX

enum color_when {
    COLOR_AUTO,
    COLOR_ALWAYS,
    COLOR_NEVER,
};

struct options {
    const struct command *command;
    const char *admin_socket;
    uint64_t timeout_ns;
    uint64_t pool;    /* 0: all */
    uint64_t release; /* a session in quarantine; 0: none */
    uint64_t revoke;  /* the session whose parcels are to end, ALL_SENDERS, or 0: none */
    bool yes;
    bool json;
    enum color_when color;
};

static const char help[] =
    "Usage: gpupoolctl [OPTION...] COMMAND\n"
    "       gpupoolctl run [OPTION...] [--] PROGRAM [ARGUMENT...]\n"
    "Shows what gpupoold lends and to whom; runs programs with memory of it.\n"
    "\n"
    "Commands:\n"
    "  help       print this\n"
    "  stats      the daemon, its pools and its sessions\n"
    "  pools      the pools, in full\n"
    "  sessions   the sessions\n"
    "  quota      what each user has and may have\n"
    "  quarantine what dead processes still hold, and why; with --release: have it back by force\n"
    "  parcels    buffers that were sent to other processes and not taken yet; with --revoke: end them\n"
    "  config     the configuration in force, and where each value comes from\n"
    "  trim       give memory that nobody uses back to the driver and the kernel\n"
    "  ping       ask whether the daemon answers\n"
    "  run        run a CUDA program with gpupoold's memory; 'gpupoolctl run --help' tells more\n"
    "\n"
    "Options:\n"
    "      --json                 print the daemon's reply: one line of JSON\n"
    "      --pool=ID              trim this pool only\n"
    "      --release=ID           quarantine: release this session's memory although it may be written to; "
    "for root\n"
    "      --revoke=ID|all        parcels: end those that this session sent, or all; for root and the "
    "daemon's user\n"
    "      --yes                  do not ask before that\n"
    "      --admin-socket=PATH    where the daemon listens, by default $GPUPOOL_ADMIN_SOCKET,\n"
    "                             else " ADMIN_SOCKET_DEFAULT "\n"
    "      --timeout=TIME         how long to wait for the answer, by default 10s\n"
    "      --color=auto|always|never\n"
    "                             auto (the default): on a terminal, unless NO_COLOR is set\n"
    "  -h, --help                 print this and exit\n"
    "      --version              print the version and exit\n"
    "\n"
    "Exit status: 0 success, 1 the daemon refused, 2 wrong usage, 3 the daemon cannot be reached.\n";

/* Goes behind what complain() says of a wrong command line. Returns code. */
static int usage_error(int code) {
    fputs("Try 'gpupoolctl --help'.\n", stderr);
    return code;
}

/* Flushes the output. Failure is an error: a full disk must not look like success. */
static int finish_output(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    return complain(EXIT_REFUSED, "cannot write the output: %s", strerror(errno));
}

static int parse_id(const char *text, uint64_t most, uint64_t *ret_id) {
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return -EINVAL;
    errno = 0;
    unsigned long long id = strtoull(text, &end, 10);
    if (*end != '\0' || errno != 0 || id == 0 || id > most)
        return -EINVAL;
    *ret_id = id;
    return 0;
}

static int parse_color(const char *text, enum color_when *ret_color) {
    static const char *const words[] = {
        [COLOR_AUTO] = "auto", [COLOR_ALWAYS] = "always", [COLOR_NEVER] = "never"};

    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i]) == 0) {
            *ret_color = (enum color_when)i;
            return 0;
        }
    return -EINVAL;
}

/* Reads the command line. Returns -1 to go on, or the code to exit with. */
static int parse_options(int argc, char **argv, struct options *options) {
    enum {
        OPTION_JSON = 256,
        OPTION_POOL,
        OPTION_RELEASE,
        OPTION_REVOKE,
        OPTION_YES,
        OPTION_ADMIN_SOCKET,
        OPTION_TIMEOUT,
        OPTION_COLOR,
        OPTION_VERSION
    };
    static const struct option long_options[] = {
        {"json", no_argument, NULL, OPTION_JSON},
        {"pool", required_argument, NULL, OPTION_POOL},
        {"release", required_argument, NULL, OPTION_RELEASE},
        {"revoke", required_argument, NULL, OPTION_REVOKE},
        {"yes", no_argument, NULL, OPTION_YES},
        {"admin-socket", required_argument, NULL, OPTION_ADMIN_SOCKET},
        {"timeout", required_argument, NULL, OPTION_TIMEOUT},
        {"color", required_argument, NULL, OPTION_COLOR},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, OPTION_VERSION},
        {NULL, 0, NULL, 0},
    };
    int option;

    while ((option = getopt_long(argc, argv, "h", long_options, NULL)) >= 0)
        switch (option) {
        case OPTION_JSON:
            options->json = true;
            break;
        case OPTION_POOL:
            if (parse_id(optarg, UINT32_MAX, &options->pool) < 0)
                return complain(EXIT_USAGE,
                                "--pool: '%s' is not a pool's number; 'gpupoolctl pools' lists them", optarg);
            break;
        case OPTION_RELEASE:
            if (parse_id(optarg, SESSION_ID_MAX, &options->release) < 0)
                return complain(
                    EXIT_USAGE,
                    "--release: '%s' is not a session's number; 'gpupoolctl quarantine' lists them", optarg);
            break;
        case OPTION_REVOKE:
            if (strcmp(optarg, "all") == 0)
                options->revoke = ALL_SENDERS;
            else if (parse_id(optarg, SESSION_ID_MAX, &options->revoke) < 0)
                return complain(
                    EXIT_USAGE,
                    "--revoke: '%s' is neither a session's number nor 'all'; 'gpupoolctl parcels' lists them",
                    optarg);
            break;
        case OPTION_YES:
            options->yes = true;
            break;
        case OPTION_ADMIN_SOCKET:
            options->admin_socket = optarg;
            break;
        case OPTION_TIMEOUT:
            if (units_parse_ns(optarg, &options->timeout_ns) < 0 || options->timeout_ns == 0)
                return complain(
                    EXIT_USAGE,
                    "--timeout: '%s' is not a time; give a number above 0 and its unit, such as 500ms or 10s",
                    optarg);
            break;
        case OPTION_COLOR:
            if (parse_color(optarg, &options->color) < 0)
                return complain(EXIT_USAGE, "--color: '%s' is none of auto, always, never", optarg);
            break;
        case 'h':
            fputs(help, stdout);
            return finish_output(EXIT_SUCCESS);
        case OPTION_VERSION:
            puts("gpupoolctl " GPUPOOL_VERSION);
            return finish_output(EXIT_SUCCESS);
        default: /* getopt has said what is wrong */
            return usage_error(EXIT_USAGE);
        }

    if (optind == argc)
        return usage_error(complain(EXIT_USAGE, "no command given"));
    if (strcmp(argv[optind], "help") == 0) {
        fputs(help, stdout);
        return finish_output(EXIT_SUCCESS);
    }
    if (strcmp(argv[optind], "run") == 0)
        return usage_error(complain(EXIT_USAGE, "'run' comes first: gpupoolctl run [OPTION...] PROGRAM"));
    if (optind + 1 < argc)
        return usage_error(
            complain(EXIT_USAGE, "one command at a time: '%s' is one too many", argv[optind + 1]));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[optind], commands[i].name) == 0)
            options->command = &commands[i];
    if (options->command == NULL)
        return usage_error(complain(EXIT_USAGE, "there is no command '%s'", argv[optind]));
    if (options->pool != 0 && strcmp(options->command->name, "trim") != 0)
        return usage_error(complain(EXIT_USAGE, "--pool is for trim only"));
    if ((options->release != 0 || options->yes) && strcmp(options->command->name, "quarantine") != 0)
        return usage_error(complain(EXIT_USAGE, "--release and --yes are for quarantine only"));
    if (options->revoke != 0 && strcmp(options->command->name, "parcels") != 0)
        return usage_error(complain(EXIT_USAGE, "--revoke is for parcels only"));
    return -1;
}

static bool wants_color(enum color_when when) {
    if (when != COLOR_AUTO)
        return when == COLOR_ALWAYS;
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0') &&
           (terminal == NULL || strcmp(terminal, "dumb") != 0);
}

static int unreachable(const struct options *options, int error) {
    const char *path = options->admin_socket;

    switch (-error) {
    case ENOENT:
    case ECONNREFUSED:
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

/* Asks the daemon one thing. Returns EXIT_SUCCESS and the answer, or the code to exit with. */
static int ask(const struct options *options, const char *command, const char *request,
               struct answer *ret_answer) {
    const char *path = options->admin_socket;
    _cleanup_(freep) char *line = NULL, *reason = NULL;
    size_t length = 0;

    int r = admin_ask(path, clock_deadline_ns(clock_now_ns(), options->timeout_ns), request, &line, &length);
    if (r < 0)
        return unreachable(options, r);
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
    struct output output = {.color = wants_color(options->color)};

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

/* Warns of what it means to release memory from quarantine by force. */
static void warn_of_release(const struct cJSON *session) {
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

static bool confirm_release(void) {
    char answer[16];

    fputs("Release it all the same? [y/N] ", stderr);
    return fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
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
    if (!options->yes && !(isatty(STDIN_FILENO) && isatty(STDERR_FILENO)))
        return refuse(options, "invalid-request",
                      "there is no terminal to ask on: add --yes to release it all the same");
    if (!options->yes && !confirm_release())
        return refuse(options, "invalid-request", "nothing was released");
    snprintf(request, sizeof request, "{\"command\":\"quarantine-release\",\"session\":%" PRIu64 "}",
             options->release);
    code = ask(options, "quarantine-release", request, &done);
    return code != EXIT_SUCCESS ? code : show(options, &done, view_released);
}

/* Ends parcels. */
static int run_revoke(const struct options *options) {
    _cleanup_(answer_deinit) struct answer done = {0};
    char request[96] = "{\"command\":\"parcels-revoke\"}";

    if (options->revoke != ALL_SENDERS)
        snprintf(request, sizeof request, "{\"command\":\"parcels-revoke\",\"session\":%" PRIu64 "}",
                 options->revoke);
    int code = ask(options, "parcels-revoke", request, &done);
    return code != EXIT_SUCCESS ? code : show(options, &done, view_revoked);
}

static int run(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0};
    char request[64];

    if (options->release != 0)
        return run_release(options);
    if (options->revoke != 0)
        return run_revoke(options);
    if (options->pool != 0)
        snprintf(request, sizeof request, "{\"command\":\"%s\",\"pool\":%" PRIu64 "}", options->command->name,
                 options->pool);
    else
        snprintf(request, sizeof request, "{\"command\":\"%s\"}", options->command->name);
    int code = ask(options, options->command->name, request, &answer);
    return code != EXIT_SUCCESS ? code : show(options, &answer, options->command->view);
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
    struct options options = {.admin_socket = getenv("GPUPOOL_ADMIN_SOCKET"),
                              .timeout_ns = TIMEOUT_DEFAULT_NS};

    if (standard_streams_fill(O_RDONLY) < 0) /* a socket among them would be printed to */
        return complain(EXIT_REFUSED, "/dev/null: %s", strerror(errno));
    /* Only the characters are the user's: numbers keep their point, for the reader of JSON too. */
    if (setlocale(LC_CTYPE, "") == NULL || !names_a_locale())
        setlocale(LC_CTYPE, "C.UTF-8");
    if (options.admin_socket == NULL || options.admin_socket[0] == '\0')
        options.admin_socket = ADMIN_SOCKET_DEFAULT;
    if (argc > 1 && strcmp(argv[1], "run") == 0)
        return run_program(argc - 1, argv + 1);
    int code = parse_options(argc, argv, &options);
    return code >= 0 ? code : run(&options);
}
