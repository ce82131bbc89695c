/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpupoolctl: asks gpupoold's admin socket one thing and shows the answer, to people as tables and to
 * programs as the line of JSON that the daemon sent. This file has the options, the commands and what is said
 * when something goes wrong.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <locale.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/tool/admin_client.h"
#include "client/tool/json.h"
#include "client/tool/text.h"
#include "client/tool/view.h"

#define ADMIN_SOCKET_DEFAULT "/run/gpupool/admin.sock"

/* The daemon answers at once, or as soon as the driver has freed what trim gives back. */
#define TIMEOUT_DEFAULT_NS (10 * NS_PER_S)

enum exit_code {
    EXIT_REFUSED = 1, /* the daemon refused, or the answer could not be written */
    EXIT_USAGE = 2,
    EXIT_UNREACHABLE = 3,
};

struct command {
    const char *name;
    unsigned parts; /* enum reply_part: what its reply consists of */
    int (*view)(const struct reply *reply, FILE *file, bool color);
};

static const struct command commands[] = {
    {"stats", REPLY_DAEMON_STATS | REPLY_POOLS | REPLY_SESSIONS, view_stats},
    {"pools", REPLY_POOLS, view_pools},
    {"sessions", REPLY_SESSIONS, view_sessions},
    {"quota", REPLY_QUOTAS, view_quota},
    {"trim", REPLY_TRIMMED, view_trim},
    {"ping", REPLY_DAEMON, view_ping},
};

enum color_when {
    COLOR_AUTO,
    COLOR_ALWAYS,
    COLOR_NEVER,
};

struct options {
    const struct command *command;
    const char *admin_socket;
    uint64_t timeout_ns;
    uint64_t pool; /* 0: all */
    bool json;
    enum color_when color;
};

static const char help[] =
    "Usage: gpupoolctl [OPTION...] COMMAND\n"
    "Shows what gpupoold lends and to whom.\n"
    "\n"
    "Commands:\n"
    "  stats      the daemon, its pools and its sessions\n"
    "  pools      the pools, in full\n"
    "  sessions   the sessions\n"
    "  quota      what each user has and may have\n"
    "  trim       give memory that nobody uses back to the driver and the kernel\n"
    "  ping       ask whether the daemon answers\n"
    "\n"
    "Options:\n"
    "      --json                 print the daemon's reply: one line of JSON\n"
    "      --pool=ID              trim this pool only\n"
    "      --admin-socket=PATH    where the daemon listens, by default $GPUPOOL_ADMIN_SOCKET,\n"
    "                             else " ADMIN_SOCKET_DEFAULT "\n"
    "      --timeout=TIME         how long to wait for the answer, by default 10s\n"
    "      --color=auto|always|never\n"
    "                             auto (the default): on a terminal, unless NO_COLOR is set\n"
    "  -h, --help                 print this and exit\n"
    "      --version              print the version and exit\n"
    "\n"
    "Exit status: 0 success, 1 the daemon refused, 2 wrong usage, 3 the daemon cannot be reached.\n";

/* Tells the user what went wrong; the text may hold what the daemon sent. */
__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...) {
    _cleanup_(freep) char *raw = NULL, *printable = NULL;
    va_list arguments;

    va_start(arguments, format);
    if (vasprintf(&raw, format, arguments) < 0)
        raw = NULL; /* what vasprintf leaves there is undefined */
    va_end(arguments);
    if (raw != NULL)
        printable = text_printable(raw, NULL);
    fprintf(stderr, "gpupoolctl: %s\n", printable != NULL ? printable : "out of memory");
}

static int usage_error(void) {
    fputs("Try 'gpupoolctl --help'.\n", stderr);
    return EXIT_USAGE;
}

/* What has been printed is on its way, or it is an error: a full disk must not look like success. */
static int finish_output(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    complain("cannot write the output: %s", strerror(errno));
    return EXIT_REFUSED;
}

static int parse_pool(const char *text, uint64_t *ret_pool) {
    char *end;

    if (text[0] < '0' || text[0] > '9')
        return -EINVAL;
    errno = 0;
    unsigned long long pool = strtoull(text, &end, 10);
    if (*end != '\0' || errno != 0 || pool == 0 || pool > UINT32_MAX)
        return -EINVAL;
    *ret_pool = pool;
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
        OPTION_ADMIN_SOCKET,
        OPTION_TIMEOUT,
        OPTION_COLOR,
        OPTION_VERSION
    };
    static const struct option long_options[] = {
        {"json", no_argument, NULL, OPTION_JSON},
        {"pool", required_argument, NULL, OPTION_POOL},
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
            if (parse_pool(optarg, &options->pool) < 0) {
                complain("--pool: '%s' is not a pool's number; 'gpupoolctl pools' lists them", optarg);
                return EXIT_USAGE;
            }
            break;
        case OPTION_ADMIN_SOCKET:
            options->admin_socket = optarg;
            break;
        case OPTION_TIMEOUT:
            if (units_parse_ns(optarg, &options->timeout_ns) < 0 || options->timeout_ns == 0) {
                complain(
                    "--timeout: '%s' is not a time; give a number above 0 and its unit, such as 500ms or 10s",
                    optarg);
                return EXIT_USAGE;
            }
            break;
        case OPTION_COLOR:
            if (parse_color(optarg, &options->color) < 0) {
                complain("--color: '%s' is none of auto, always, never", optarg);
                return EXIT_USAGE;
            }
            break;
        case 'h':
            fputs(help, stdout);
            return finish_output(EXIT_SUCCESS);
        case OPTION_VERSION:
            puts("gpupoolctl " GPUPOOL_VERSION);
            return finish_output(EXIT_SUCCESS);
        default: /* getopt has said what is wrong */
            return usage_error();
        }

    if (optind == argc) {
        complain("no command given");
        return usage_error();
    }
    if (optind + 1 < argc) {
        complain("one command at a time: '%s' is one too many", argv[optind + 1]);
        return usage_error();
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[optind], commands[i].name) == 0)
            options->command = &commands[i];
    if (options->command == NULL) {
        complain("there is no command '%s'", argv[optind]);
        return usage_error();
    }
    if (options->pool != 0 && strcmp(options->command->name, "trim") != 0) {
        complain("--pool is for trim only");
        return usage_error();
    }
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
        complain(
            "no gpupoold answers at %s: start it (systemctl start gpupoold), or name its admin socket with "
            "--admin-socket",
            path);
        break;
    case EACCES:
    case EPERM:
        complain("this user may not connect to %s: ask its owner for access, or run gpupoolctl as that user",
                 path);
        break;
    case ENAMETOOLONG:
        complain("%s: no socket can have so long a path; name it with a shorter one", path);
        break;
    case EPROTOTYPE:
        complain(
            "%s is not an admin socket (the data socket, perhaps): name the admin socket with --admin-socket",
            path);
        break;
    case ETIMEDOUT:
        complain("gpupoold at %s did not answer within %s: look at its log, or wait longer with --timeout",
                 path, NS_TEXT(options->timeout_ns));
        break;
    case ECONNRESET:
        complain("gpupoold at %s hung up before it had answered: it is stopping, or its log says why", path);
        break;
    case EMSGSIZE:
    case EBADMSG:
        complain("what answers at %s does not speak gpupoold's admin protocol: check the path", path);
        break;
    default:
        complain("cannot talk to gpupoold at %s: %s", path, strerror(-error));
    }
    return EXIT_UNREACHABLE;
}

static int run(const struct options *options) {
    struct admin_client client;
    _cleanup_(freep) char *line = NULL, *reason = NULL;
    _cleanup_(reply_freep) struct reply *reply = NULL;
    char request[64];
    size_t length = 0;

    if (options->pool != 0)
        snprintf(request, sizeof request, "{\"command\":\"%s\",\"pool\":%" PRIu64 "}", options->command->name,
                 options->pool);
    else
        snprintf(request, sizeof request, "{\"command\":\"%s\"}", options->command->name);

    int r = admin_client_open(&client, options->admin_socket,
                              clock_deadline_ns(clock_now_ns(), options->timeout_ns));
    if (r < 0)
        return unreachable(options, r);
    r = admin_client_call(&client, request, &line, &length);
    admin_client_close(&client);
    if (r < 0)
        return unreachable(options, r);

    r = reply_read(line, length, options->command->parts, &reply, &reason);
    if (r == -EBADMSG) {
        complain(
            "gpupoold at %s sent a reply that does not check out (%s): are daemon and gpupoolctl of the same "
            "version?",
            options->admin_socket, reason);
        return EXIT_UNREACHABLE;
    }
    if (r == 0 && options->json)
        text_write_json(stdout, line, length);
    if (r == 0 && reply->error_code != NULL) {
        complain("gpupoold refused: %s (%s)", reply->error_message, reply->error_code);
        return finish_output(EXIT_REFUSED);
    }
    if (r == 0 && !options->json)
        r = options->command->view(reply, stdout, wants_color(options->color));
    if (r < 0) {
        complain("%s", strerror(-r));
        return finish_output(EXIT_REFUSED);
    }
    return finish_output(EXIT_SUCCESS);
}

int main(int argc, char **argv) {
    struct options options = {.admin_socket = getenv("GPUPOOL_ADMIN_SOCKET"),
                              .timeout_ns = TIMEOUT_DEFAULT_NS};

    /* Only the characters are the user's: numbers keep their point, for the reader of JSON too. */
    setlocale(LC_CTYPE, "");
    if (options.admin_socket == NULL || options.admin_socket[0] == '\0')
        options.admin_socket = ADMIN_SOCKET_DEFAULT;
    int code = parse_options(argc, argv, &options);
    return code >= 0 ? code : run(&options);
}
