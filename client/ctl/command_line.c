/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/command_line.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/nearest.h"
#include "base/units.h"
#include "client/ctl/drain.h"
#include "client/ctl/events.h"
#include "client/ctl/history.h"
#include "client/ctl/moment.h"
#include "client/ctl/report.h"
#include "client/ctl/run.h"
#include "client/ctl/text.h"
#include "client/ctl/top.h"
#include "client/ctl/unpublish.h"
#include "client/ctl/upgrade.h"
#include "client/ctl/user.h"
#include "client/ctl/view.h"

/* JSON's numbers are exact up to this one. */
#define SESSION_ID_MAX (UINT64_C(1) << 53)

/* Help is as wide as this, and its texts begin at these columns. */
#define HELP_COLUMNS        80u
#define HELP_COMMAND_COLUMN 13u
#define HELP_OPTION_COLUMN  27u

static int read_session_end(int count, char **words, struct options *options);
static int read_scope(int count, char **words, struct options *options);
static int read_record(int count, char **words, struct options *options);
static int read_unpublish(int count, char **words, struct options *options);

static const struct command commands[] = {
    {"stats", view_stats, "the daemon, its pools and its sessions",
     "Shows the daemon, how much each pool has and lends, and the sessions."},
    {"top", NULL, "the pools and the processes, live",
     "Shows the pools as bars over time, the requests that wait, the quarantine and the processes, again and "
     "again. F1 "
     "shows the keys.",
     .run = top_run},
    {"pools", view_pools, "the pools, in full",
     "Shows how the pools were set up, what is in them, what happened to them since the daemon started, and "
     "how long that "
     "took."},
    {"sessions", view_sessions, "the sessions",
     "Shows the connected processes and those whose memory is in quarantine: what each has of each pool, and "
     "what it waits "
     "for."},
    {"leases", view_leases, "the leases, the oldest of each session first",
     "Shows which session has which block of which segment, since when, and how many hold it. At most 512 "
     "leases: --session "
     "chooses a session."},
    {"sharing", view_sharing, "the blocks that processes share, and which processes hold each",
     "Shows the blocks that have a token: each with the sessions that hold it, and with the number of those "
     "that are on "
     "their way to another process."},
    {"session", NULL, "session end ID: end a session; for root and the daemon's user",
     "Gives a session an end: the process loses its connection, and all calls of it fail. The memory stays "
     "in quarantine "
     "until the process has ended. First a question is asked. For root and the daemon's user.",
     .words = "end ID", .read_words = read_session_end},
    {"scope", NULL,
     "scope add|set|drop NAME, scope list: sockets of their own for pods and jobs; for root and the daemon's "
     "user",
     "Gives a pod or job a socket of its own, its scope. Users who come in there are apart from users of the "
     "same numbers elsewhere, as two users are, and have one quota together. The directory of the socket is "
     "to "
     "be mounted into the container, at /run/gpupool. 'set' replaces what its options name. After 'drop' no "
     "process comes in any more; it waits "
     "until "
     "those are gone that are there, or with --end ends them. 'list' shows the scopes, with sessions, memory "
     "and labels. For root and the daemon's user.",
     .run = scope_run, .words = "add NAME | set NAME | drop NAME | list", .read_words = read_scope},
    {"quota", view_quota, "what each user has and may have",
     "Shows for each user the sessions, leases, waiting requests and bytes of each pool, with their limits."},
    {"quarantine", view_quarantine,
     "what dead processes still hold, and why; with --release: have it back by force",
     "Shows the memory of processes that ended without a farewell, and why it has not come back yet. With "
     "--release it comes "
     "back by force: first a warning is printed, and a question is asked."},
    {"parcels", view_parcels,
     "buffers that were sent to other processes and not taken yet; with --revoke: end them",
     "Shows the buffers that processes sent and others have not taken yet. With --revoke these end: a "
     "process that wants to "
     "take one gets an error, and the memory comes back when no process has it. First a question is asked."},
    {"names", view_names, "buffers that processes publish under names, and which memory names keep",
     "Shows the names: what each stands for, whether it is kept when its publisher ends, whether the "
     "publisher "
     "is there, how many leases other processes have of it, and which session builds it. For root and the "
     "daemon's user those of all users."},
    {"channels", view_channels, "channels, the processes in their places, and how far each one is",
     "Shows the channels: memory, slots, policy and frames that were sent, and each place: its state, its "
     "process, how many frames a consumer is behind, and how many it has received and not released. The "
     "numbers of frames are what the processes say. For root and the daemon's user those of all users."},
    {"unpublish", NULL, "unpublish NAME: have a name stand for nothing any more",
     "Gives a name an end: a process that opens it gets an error, and the memory comes back when no process "
     "has "
     "it. A channel goes when no process is in its places. First a question is asked. For the name's user; "
     "with --uid and --scope for root and the daemon's "
     "user.",
     .run = unpublish_run, .words = "NAME", .read_words = read_unpublish},
    {"config", view_config, "the configuration in force, and where each value comes from",
     "Shows each value that the daemon uses, with the line of the file that has it, or the command line, or "
     "the default, and what the daemon made of it."},
    {"reload", view_reload,
     "read the configuration again, and say what changed; for root and the daemon's user",
     "Shows what changes after the daemon has read its configuration again, which keys need a restart, and "
     "the "
     "mistakes, with which nothing changes. For root and the daemon's user."},
    {"estate", NULL, "what a restart of the daemon would keep, and what not; with --drop: let it go",
     "Shows whether the daemon's sessions and their memory would survive its restart, and what would not, "
     "and why. "
     "With --drop nothing survives from now on, which is for a downgrade to a version that knows no estate; "
     "first a "
     "question is asked. That is for root and the daemon's user.",
     .run = estate_run},
    {"upgrade", NULL, "restart the daemon with another program, and keep the sessions",
     "Gives the sessions to the next daemon: asks its program whether it can go on with what there is, "
     "restarts the "
     "daemon, waits until the next one answers, and says how long that took. The program is the one at the "
     "path of the "
     "running daemon, unless --daemon says otherwise; the service manager starts it. For root and the "
     "daemon's user.",
     .run = upgrade_run},
    {"trim", view_trim, "give memory that nobody uses back to the driver and the kernel",
     "Gives back to the driver and the kernel those segments of which nothing is leased, and which no "
     "process has mapped. For root and the daemon's user."},
    {"drain", NULL, "lend no more, and wait until all memory has come back",
     "Gives out no more memory: requests are refused, also those that wait, and while all pools drain no "
     "program "
     "connects. Programs keep what they have, are asked for what they keep idle, and idle memory goes back "
     "to the "
     "driver and the kernel. Waits until nothing is held, or --timeout is over. --off ends it, and so does a "
     "restart "
     "of the daemon. For root and the daemon's user.",
     .run = drain_run},
    {"metrics", NULL, "the daemon's state as metrics for Prometheus",
     "Shows the daemon's state in Prometheus' text format: of the daemon, its pools and its users. Write it "
     "to a "
     "file and rename that, for node_exporter's textfile collector. For root and the daemon's user the "
     "numbers "
     "are those of all users.",
     .is_metrics = true},
    {"events", NULL, "what happened to memory: leases, waits, refusals, deaths, growth",
     "Shows the flight recorder's records, the oldest first: of the last hour, unless --since says "
     "otherwise. The daemon "
     "is not asked and need not live. For root and the daemon's user.",
     .run = events_run, .is_of_records = true, .since = "1h"},
    {"history", NULL, "by day and hour: peaks, whose they were, waits and refusals",
     "Shows how each day and each hour was for each pool: the peak of what it lent, the user who had most of "
     "that and "
     "this user's largest process, the waits and the refusals. Since yesterday, unless --since says "
     "otherwise. For root "
     "and the daemon's user.",
     .run = history_run, .is_of_records = true, .since = "yesterday"},
    {"record", NULL, "record export: the records for programs that draw them",
     "Gives the flight recorder's records in a format of another program, on standard output: --perfetto for "
     "ui.perfetto.dev, with counters, waits and refusals by process; --memory-viz for "
     "pytorch.org/memory_viz, "
     "with leases as blocks. For root and the daemon's user.",
     .run = export_run, .is_of_records = true, .words = "export", .read_words = read_record},
    {"report", NULL, "a page for the browser: pools over time, holders, waits, refusals",
     "Shows as one HTML page on standard output how the pools were over time, which processes had their "
     "memory, the waits, the refusals and the deaths: of the last 24 hours, unless --since says otherwise. "
     "The page needs nothing beside itself. The daemon is not asked and need not live. For root and the "
     "daemon's user.",
     .run = report_run, .is_of_records = true, .since = "24h"},
    {"ping", view_ping, "ask whether the daemon answers",
     "Shows the version, the process and the age of the daemon, if it answers."},
    {"run", NULL, "run a CUDA program with gpupoold's memory", NULL},
    {"help", NULL, "print this; with the name of a command: describe that command", NULL},
};

enum option_value {
    OPTION_JSON = 256,
    OPTION_POOL,
    OPTION_SINCE,
    OPTION_UNTIL,
    OPTION_PID,
    OPTION_USER,
    OPTION_SCOPE,
    OPTION_FOLLOW,
    OPTION_INTERVAL,
    OPTION_ONCE,
    OPTION_BATCH,
    OPTION_RECORDS,
    OPTION_SESSION,
    OPTION_RELEASE,
    OPTION_REVOKE,
    OPTION_PERFETTO,
    OPTION_MEMORY_VIZ,
    OPTION_YES,
    OPTION_UID,
    OPTION_QUOTA,
    OPTION_LABEL,
    OPTION_END,
    OPTION_NO_WAIT,
    OPTION_DROP,
    OPTION_OFF,
    OPTION_DAEMON,
    OPTION_ADMIN_SOCKET,
    OPTION_TIMEOUT,
    OPTION_COLOR,
    OPTION_VERSION,
    OPTION_HELP = 'h',
};

#define COMMANDS_MAX 7u
#define NAMES_SIZE   72u /* of that many commands */

/* An option is for the commands that it names, or for all that ask the daemon. */
static const struct option_row {
    enum option_value value;
    const char *name, *argument;
    const char *commands[COMMANDS_MAX];
    const char *text;
} option_rows[] = {
    {OPTION_POOL,
     "pool",
     "ID",
     {"trim", "drain", "events", "history", "record", "report", "top"},
     "this pool only"},
    {OPTION_SINCE,
     "since",
     "TIME",
     {"events", "history", "record", "report"},
     "from then on: 10m, 1h, 2d, 14:05, yesterday, 2026-11-26, '2026-11-26 14:05'"},
    {OPTION_UNTIL, "until", "TIME", {"events", "history", "record", "report"}, "until then, likewise"},
    {OPTION_PID, "pid", "PID", {"events", "record", "top"}, "of this process only"},
    {OPTION_USER, "user", "USER", {"events", "record", "top"}, "of this user only, by name or number"},
    {OPTION_SCOPE, "scope", "NAME", {"events", "record", "top", "unpublish"}, "of this scope only"},
    {OPTION_FOLLOW, "follow", NULL, {"events"}, "go on with those that come, until interrupted"},
    {OPTION_INTERVAL, "interval", "TIME", {"top"}, "between two looks, by default 3s"},
    {OPTION_ONCE, "once", NULL, {"top"}, "print one screen as text"},
    {OPTION_BATCH, "batch", NULL, {"top"}, "print screens as text, until interrupted"},
    {OPTION_RECORDS,
     "records",
     "PATH",
     {"events", "history", "record", "report"},
     "the file to read, by default the one beside the admin socket"},
    {OPTION_SESSION, "session", "ID", {"leases"}, "of this session only"},
    {OPTION_PERFETTO, "perfetto", NULL, {"record"}, "as a trace for Perfetto, in JSON"},
    {OPTION_MEMORY_VIZ, "memory-viz", NULL, {"record"}, "as a snapshot for PyTorch's memory_viz, a pickle"},
    {OPTION_RELEASE,
     "release",
     "ID",
     {"quarantine"},
     "release this session's memory although it may be written to; for root"},
    {OPTION_REVOKE,
     "revoke",
     "ID|all",
     {"parcels"},
     "end those that this session sent, or all; for root and the daemon's user"},
    {OPTION_YES,
     "yes",
     NULL,
     {"quarantine", "parcels", "unpublish", "session", "estate", "upgrade"},
     "do not ask before something is ended"},
    {OPTION_DROP, "drop", NULL, {"estate"}, "let it go: a restart ends all sessions"},
    {OPTION_OFF, "off", NULL, {"drain"}, "end it: memory is lent again"},
    {OPTION_DAEMON, "daemon", "FILE", {"upgrade"}, "the program that the service manager will start"},
    {OPTION_UID,
     "uid",
     "USER",
     {"scope", "unpublish"},
     "scope add, set: a user who may come in; again for more. Without it: every user. unpublish: the user "
     "whose "
     "name it is"},
    {OPTION_QUOTA,
     "quota",
     "KEY=LIMIT",
     {"scope"},
     "add, set: a limit of all its users together, with a key of [quota] in gpupoold.conf(5), such as "
     "device=8GiB"},
    {OPTION_LABEL,
     "label",
     "NAME=TEXT",
     {"scope"},
     "add, set: a label for people and metrics, such as pod=trainer-0"},
    {OPTION_END,
     "end",
     NULL,
     {"scope"},
     "drop: end the sessions that are there; their processes may live on"},
    {OPTION_NO_WAIT, "no-wait", NULL, {"scope", "drain"}, "drain, scope drop: do not wait for the end"},
    {OPTION_JSON, "json", NULL, {NULL}, "print the daemon's reply: one line of JSON"},
    {OPTION_ADMIN_SOCKET,
     "admin-socket",
     "PATH",
     {NULL},
     "where the daemon listens, by default $GPUPOOL_ADMIN_SOCKET, else that of the daemon at "
     "$GPUPOOL_SOCKET, "
     "else " ADMIN_SOCKET_DEFAULT},
    {OPTION_TIMEOUT, "timeout", "TIME", {NULL}, "how long to wait for the answer, by default 10s"},
    {OPTION_COLOR,
     "color",
     "WHEN",
     {NULL},
     "always, never, or auto (the default): on a terminal, unless NO_COLOR is set"},
    {OPTION_HELP, "help", NULL, {NULL}, "print this, or with a command describe that, and exit"},
    {OPTION_VERSION, "version", NULL, {NULL}, "print the version and exit"},
};

#define ROWS ARRAY_LENGTH(option_rows)

/* --- help --- */

static bool is_for_all(const struct option_row *row) {
    return row->commands[0] == NULL;
}

static bool is_for(const struct option_row *row, const struct command *command) {
    for (size_t i = 0; i < ARRAY_LENGTH(row->commands); i++)
        if (row->commands[i] != NULL && strcmp(row->commands[i], command->name) == 0)
            return true;
    return is_for_all(row);
}

/* Prints a word, and from a column on a text. */
static void print_entry(const char *word, size_t column, const char *text) {
    printf("%-*s", (int)column, word);
    if (strlen(word) >= column)
        printf("\n%*s", (int)column, "");
    text_wrap(stdout, text, column, HELP_COLUMNS);
}

/* "events, history". Returns names. */
static const char *command_names(const struct option_row *row, char names[NAMES_SIZE]) {
    names[0] = '\0';
    for (size_t i = 0; i < ARRAY_LENGTH(row->commands) && row->commands[i] != NULL; i++) {
        size_t length = strlen(names);
        snprintf(names + length, NAMES_SIZE - length, "%s%s", i > 0 ? ", " : "", row->commands[i]);
    }
    return names;
}

static void print_option(const struct option_row *row, bool with_commands) {
    char word[64], text[256] = "", names[NAMES_SIZE];

    snprintf(word, sizeof word, "  %s--%s%s%s", row->value == OPTION_HELP ? "-h, " : "    ", row->name,
             row->argument != NULL ? "=" : "", row->argument != NULL ? row->argument : "");
    if (with_commands && !is_for_all(row))
        snprintf(text, sizeof text, "%s: ", command_names(row, names));
    strncat(text, row->text, sizeof text - strlen(text) - 1);
    print_entry(word, HELP_OPTION_COLUMN, text);
}

static void print_help(void) {
    puts("Usage: gpupoolctl [OPTION...] COMMAND\n"
         "       gpupoolctl run [OPTION...] [--] PROGRAM [ARGUMENT...]\n"
         "       gpupoolctl help [COMMAND]\n"
         "Shows what gpupoold lends and to whom; runs programs with memory of it.\n"
         "\n"
         "Commands:");
    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++) {
        char word[HELP_COMMAND_COLUMN + 1];
        snprintf(word, sizeof word, "  %s", commands[i].name);
        print_entry(word, HELP_COMMAND_COLUMN, commands[i].summary);
    }
    puts("\nOptions:");
    for (size_t i = 0; i < ROWS; i++)
        print_option(&option_rows[i], true);
    puts("\nExit status: 0 success, 1 the daemon refused, 2 wrong usage, 3 the daemon cannot\nbe reached.");
}

static void print_command_help(const struct command *command) {
    bool has_own = false;

    if (command->text == NULL) {
        if (strcmp(command->name, "run") == 0)
            run_print_help();
        else
            print_help();
        return;
    }
    printf("Usage: gpupoolctl [OPTION...] %s%s%s\n", command->name, command->words != NULL ? " " : "",
           command->words != NULL ? command->words : "");
    text_wrap(stdout, command->text, 0, HELP_COLUMNS);
    for (size_t i = 0; i < ROWS; i++)
        if (!is_for_all(&option_rows[i]) && is_for(&option_rows[i], command)) {
            if (!has_own)
                puts("\nIts options:");
            has_own = true;
            print_option(&option_rows[i], false);
        }
    puts("\nOptions of all commands:");
    for (size_t i = 0; i < ROWS; i++)
        if (is_for_all(&option_rows[i]))
            print_option(&option_rows[i], false);
}

/* --- reading --- */

/* Goes behind what complain() says of a wrong command line. Returns code. */
static int usage_error(int code) {
    fputs("Try 'gpupoolctl --help'.\n", stderr);
    return code;
}

int finish_output(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    return complain(EXIT_REFUSED, "cannot write the output: %s", strerror(errno));
}

static int parse_id(const char *text, uint64_t most, uint64_t *ret_id) {
    uint64_t id;

    if (units_parse_number(text, most, &id) < 0 || id == 0)
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

/* The command of a name. NULL: there is none, which was told. */
static const struct command *find_command(const char *name) {
    struct nearest nearest = {.word = name};

    for (size_t i = 0; i < ARRAY_LENGTH(commands); i++) {
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
        nearest_offer(&nearest, commands[i].name);
    }
    if (nearest.best != NULL)
        complain(EXIT_USAGE, "there is no command '%s': did you mean '%s'?", name, nearest.best);
    else
        complain(EXIT_USAGE, "there is no command '%s'", name);
    usage_error(EXIT_USAGE);
    return NULL;
}

/* Goes behind what getopt says of an option. Returns EXIT_USAGE. */
static int option_error(const char *word) {
    char name[32];
    struct nearest nearest = {.word = name};

    if (strncmp(word, "--", 2) == 0 && optopt == 0) { /* a name that there is not */
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 2, "="), word + 2);
        for (size_t i = 0; i < ROWS; i++)
            nearest_offer(&nearest, option_rows[i].name);
    }
    if (nearest.best != NULL)
        complain(EXIT_USAGE, "did you mean '--%s'?", nearest.best);
    return usage_error(EXIT_USAGE);
}

/* Takes an option that can be given again. */
static int take_one_more(const char *values[static SCOPE_OPTIONS_MAX], unsigned *count, const char *value) {
    if (*count == SCOPE_OPTIONS_MAX)
        return complain(EXIT_USAGE, "'%s': the same option is given more than %u times", value,
                        SCOPE_OPTIONS_MAX);
    values[(*count)++] = value;
    return -1;
}

/* Takes an option with a value of its own. Returns -1 to go on, or the code to exit with. */
static int take_value(enum option_value option, const char *value, struct options *options) {
    switch (option) {
    case OPTION_POOL:
        if (parse_id(value, UINT32_MAX, &options->pool) < 0)
            return complain(EXIT_USAGE, "--pool: '%s' is not a pool's number; 'gpupoolctl pools' lists them",
                            value);
        return -1;
    case OPTION_SINCE:
    case OPTION_UNTIL:
        if (moment_parse(value, moment_now_ns(),
                         option == OPTION_SINCE ? &options->filter.since_ns : &options->filter.until_ns) < 0)
            return complain(
                EXIT_USAGE,
                "--%s: '%s' is no time; give such as 10m, 1h, 2d, 14:05, yesterday, or '2026-11-26 14:05'",
                option == OPTION_SINCE ? "since" : "until", value);
        return -1;
    case OPTION_PID:
        if (parse_id(value, INT32_MAX, &options->filter.pid) < 0)
            return complain(EXIT_USAGE, "--pid: '%s' is not a process's number", value);
        return -1;
    case OPTION_USER:
        if (user_find(value, &options->filter.uid) < 0)
            return complain(EXIT_USAGE, "--user: there is no user '%s'", value);
        return -1;
    case OPTION_SCOPE:
        options->filter.scope = value;
        return -1;
    case OPTION_INTERVAL:
        if (units_parse_ns(value, &options->interval_ns) < 0 || options->interval_ns < TOP_INTERVAL_MIN_NS ||
            options->interval_ns > TOP_INTERVAL_MAX_NS)
            return complain(EXIT_USAGE, "--interval: '%s' is no time from 100ms to 1min", value);
        return -1;
    case OPTION_RECORDS:
        options->records = value;
        return -1;
    case OPTION_DAEMON:
        options->daemon = value;
        return -1;
    case OPTION_SESSION:
        if (parse_id(value, SESSION_ID_MAX, &options->session) < 0)
            return complain(EXIT_USAGE,
                            "--session: '%s' is not a session's number; 'gpupoolctl sessions' lists them",
                            value);
        return -1;
    case OPTION_RELEASE:
        if (parse_id(value, SESSION_ID_MAX, &options->release) < 0)
            return complain(EXIT_USAGE,
                            "--release: '%s' is not a session's number; 'gpupoolctl quarantine' lists them",
                            value);
        return -1;
    case OPTION_REVOKE:
        if (strcmp(value, "all") == 0)
            options->revoke = ALL_SENDERS;
        else if (parse_id(value, SESSION_ID_MAX, &options->revoke) < 0)
            return complain(
                EXIT_USAGE,
                "--revoke: '%s' is neither a session's number nor 'all'; 'gpupoolctl parcels' lists them",
                value);
        return -1;
    case OPTION_UID:
        return take_one_more(options->scope.uids, &options->scope.n_uids, value);
    case OPTION_QUOTA:
        return take_one_more(options->scope.quotas, &options->scope.n_quotas, value);
    case OPTION_LABEL:
        return take_one_more(options->scope.labels, &options->scope.n_labels, value);
    case OPTION_TIMEOUT:
        if (units_parse_ns(value, &options->timeout_ns) < 0 || options->timeout_ns == 0)
            return complain(
                EXIT_USAGE,
                "--timeout: '%s' is not a time; give a number above 0 and its unit, such as 500ms or 10s",
                value);
        return -1;
    case OPTION_COLOR:
        if (parse_color(value, &options->color) < 0)
            return complain(EXIT_USAGE, "--color: '%s' is none of auto, always, never", value);
        return -1;
    default:
        options->admin_socket = value;
        return -1;
    }
}

/* Reads the options. Returns -1 to go on with the words at optind, or the code to exit with. */
static int read_options(int argc, char **argv, struct options *options, bool *ret_help,
                        bool given[static ROWS]) {
    struct option long_options[ROWS + 1] = {0};
    int option, index, code = -1;

    for (size_t i = 0; i < ROWS; i++)
        long_options[i] = (struct option){option_rows[i].name,
                                          option_rows[i].argument != NULL ? required_argument : no_argument,
                                          NULL, (int)option_rows[i].value};
    while (code < 0 && (option = getopt_long(argc, argv, "h", long_options, NULL)) >= 0) {
        for (index = 0; index < (int)ROWS; index++)
            given[index] |= (int)option_rows[index].value == option;
        switch (option) {
        case OPTION_JSON:
            options->json = true;
            break;
        case OPTION_YES:
            options->yes = true;
            break;
        case OPTION_PERFETTO:
        case OPTION_MEMORY_VIZ:
            if (options->export_format != EXPORT_NONE)
                return usage_error(complain(EXIT_USAGE, "one format at a time: --perfetto or --memory-viz"));
            options->export_format = option == OPTION_PERFETTO ? EXPORT_PERFETTO : EXPORT_MEMORY_VIZ;
            break;
        case OPTION_END:
            options->scope.end = true;
            break;
        case OPTION_NO_WAIT:
            options->scope.no_wait = true;
            break;
        case OPTION_DROP:
            options->drop = true;
            break;
        case OPTION_OFF:
            options->off = true;
            break;
        case OPTION_ONCE:
            options->once = true;
            break;
        case OPTION_BATCH:
            options->batch = true;
            break;
        case OPTION_FOLLOW:
            options->follow = true;
            break;
        case OPTION_HELP:
            *ret_help = true;
            break;
        case OPTION_VERSION:
            puts("gpupoolctl " GPUPOOL_VERSION);
            return finish_output(EXIT_SUCCESS);
        case '?': /* getopt has said what is wrong */
            return option_error(argv[optind - 1]);
        default:
            code = take_value((enum option_value)option, optarg, options);
        }
    }
    return code;
}

static int read_session_end(int count, char **words, struct options *options) {
    if (count != 2 || strcmp(words[0], "end") != 0)
        return usage_error(complain(EXIT_USAGE, "after 'session' come 'end' and a session's number"));
    if (parse_id(words[1], SESSION_ID_MAX, &options->session) < 0)
        return complain(EXIT_USAGE,
                        "session end: '%s' is not a session's number; 'gpupoolctl sessions' lists them",
                        words[1]);
    return -1;
}

static int read_scope(int count, char **words, struct options *options) {
    static const char *const verbs[] = {
        [SCOPE_LIST] = "list", [SCOPE_ADD] = "add", [SCOPE_SET] = "set", [SCOPE_DROP] = "drop"};
    size_t verb = 0;

    while (count > 0 && verb < ARRAY_LENGTH(verbs) && strcmp(words[0], verbs[verb]) != 0)
        verb++;
    if (count == 0 || verb == ARRAY_LENGTH(verbs) || count != (verb == SCOPE_LIST ? 1 : 2))
        return usage_error(
            complain(EXIT_USAGE, "after 'scope' come 'list', or 'add', 'set' or 'drop' and a name"));
    const struct scope_options *scope = &options->scope;
    if (verb != SCOPE_ADD && verb != SCOPE_SET && scope->n_uids + scope->n_quotas + scope->n_labels > 0)
        return usage_error(
            complain(EXIT_USAGE, "--uid, --quota and --label are for scope add and scope set only"));
    if (verb != SCOPE_DROP && (scope->end || scope->no_wait))
        return usage_error(complain(EXIT_USAGE, "--end and --no-wait are for scope drop only"));
    options->scope.verb = (enum scope_verb)verb;
    options->scope.name = words[1];
    return -1;
}

static int read_unpublish(int count, char **words, struct options *options) {
    if (count != 1)
        return usage_error(
            complain(EXIT_USAGE, "after 'unpublish' comes one name; 'gpupoolctl names' lists them"));
    options->name = words[0];
    return -1;
}

static int read_record(int count, char **words, struct options *options) {
    (void)options;
    if (count != 1 || strcmp(words[0], "export") != 0)
        return usage_error(complain(EXIT_USAGE, "after 'record' comes 'export'"));
    return -1;
}

/* Reads the words behind the options: a command, or "help" and a command. Returns as read_options(). */
static int read_words(int argc, char **argv, struct options *options, bool *help) {
    if (optind == argc)
        return *help ? -1 : usage_error(complain(EXIT_USAGE, "no command given"));
    if (strcmp(argv[optind], "help") == 0) {
        *help = true;
        if (++optind == argc)
            return -1;
    }
    options->command = find_command(argv[optind]);
    if (options->command == NULL)
        return EXIT_USAGE;
    if (options->command->text == NULL && !*help)
        return usage_error(complain(EXIT_USAGE, "'run' comes first: gpupoolctl run [OPTION...] PROGRAM"));
    if (options->command->read_words != NULL && !*help)
        return options->command->read_words(argc - optind - 1, argv + optind + 1, options);
    if (optind + 1 < argc && options->command->text != NULL && options->command->read_words == NULL)
        return usage_error(
            complain(EXIT_USAGE, "one command at a time: '%s' is one too many", argv[optind + 1]));
    return -1;
}

int command_line_read(int argc, char **argv, struct options *options) {
    bool help = false, given[ROWS] = {0};
    char names[NAMES_SIZE];

    int code = read_options(argc, argv, options, &help, given);
    if (code < 0)
        code = read_words(argc, argv, options, &help);
    if (code >= 0)
        return code;
    if (help) {
        if (options->command != NULL)
            print_command_help(options->command);
        else
            print_help();
        return finish_output(EXIT_SUCCESS);
    }
    for (size_t i = 0; i < ROWS; i++)
        if (given[i] && !is_for(&option_rows[i], options->command))
            return usage_error(complain(EXIT_USAGE, "--%s is for %s only", option_rows[i].name,
                                        command_names(&option_rows[i], names)));
    const char *since = options->command->since;
    if (since != NULL && options->filter.since_ns == 0 && options->filter.until_ns == 0)
        moment_parse(since, moment_now_ns(), &options->filter.since_ns);
    options->filter.pool = options->pool;
    return -1;
}
