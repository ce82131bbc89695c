/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "client/ctl/answer.h"
#include "client/ctl/command_line.h"
#include "client/ctl/question.h"
#include "client/ctl/text.h"
#include "client/ctl/view.h"

/* Between two looks whether the next daemon answers. */
#define LOOK_NS     (5 * NS_PER_MS)
#define FORMAT_SIZE 512u
#define PROGRAM     "gpupoold"

extern char **environ;

/* --- the estate --- */

static int drop(const struct options *options) {
    _cleanup_(answer_deinit) struct answer done = {0};

    fputs("A restart of the daemon ends all sessions then, until it has been stopped and started.\n", stderr);
    int code = answer_confirm(options, "Let the estate go?", "let go");
    if (code != EXIT_SUCCESS)
        return code;
    code = answer_ask(options, "estate-drop", "{\"command\":\"estate-drop\"}", &done);
    return code != EXIT_SUCCESS ? code : answer_show(options, &done, view_estate_drop);
}

int estate_run(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0};

    if (options->drop)
        return drop(options);
    int code = answer_ask(options, "estate", "{\"command\":\"estate\"}", &answer);
    return code != EXIT_SUCCESS ? code : answer_show(options, &answer, view_estate);
}

/* --- an upgrade --- */

/* Writes the format that the next daemon has to know, as gpupoold --reads-estate takes it. It passes over records of
 * kinds that hold no memory, where it does not know them. */
static void write_format(const struct cJSON *estate, char format[FORMAT_SIZE]) {
    int length = snprintf(format, FORMAT_SIZE, "%" PRIu64 "/%" PRIu64, reply_count(estate, "format.major"),
                          reply_count(estate, "format.desk"));

    reply_each(kind, estate, "format.kinds") {
        if (reply_flag(kind, "holds") && length > 0 && length < (int)FORMAT_SIZE)
            length += snprintf(format + length, FORMAT_SIZE - (size_t)length, " %" PRIu64 ":%" PRIu64,
                               reply_count(kind, "kind"), reply_count(kind, "size_bytes"));
    }
}

/* The first word of a process's command line. "": it cannot be read, or there is none. */
static void read_name(uint64_t pid, char name[PATH_MAX]) {
    char path[64];

    snprintf(path, sizeof path, "/proc/%" PRIu64 "/cmdline", pid);
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, name, PATH_MAX - 1);
    name[n > 0 ? n : 0] = '\0';
}

/* The file of a process's program, which may have been replaced since. Returns 0 or a negative errno. */
static int read_file(uint64_t pid, char path[PATH_MAX]) {
    static const char gone[] = " (deleted)";
    char link[64];

    snprintf(link, sizeof link, "/proc/%" PRIu64 "/exe", pid);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n < 0)
        return -errno;
    path[n] = '\0';
    size_t length = (size_t)n, tail = strlen(gone);
    if (length > tail && strcmp(path + length - tail, gone) == 0)
        path[length - tail] = '\0';
    return 0;
}

/* The process may have the number of the daemon in another PID namespace, and be any program. */
static bool is_of_daemon(const char *path) {
    const char *slash = strrchr(path, '/');

    return slash != NULL && strncmp(slash + 1, PROGRAM, strlen(PROGRAM)) == 0;
}

/* The path at which the service manager finds the next daemon: the one that this daemon was called by. It can lead over a
 * link that an upgrade changes. Without an absolute one, that of the daemon's file. Returns 0 or a negative errno. */
static int find_program(uint64_t pid, char path[PATH_MAX]) {
    read_name(pid, path);
    if (path[0] == '/' && is_of_daemon(path) && access(path, F_OK) == 0)
        return 0;
    int r = read_file(pid, path);
    return r < 0 || is_of_daemon(path) ? r : -ESRCH;
}

/* Whether the file is root's or this user's. */
static bool is_trusted(int fd) {
    struct stat status;

    return fstat(fd, &status) == 0 && (status.st_uid == 0 || status.st_uid == geteuid());
}

/* Runs the program, which says by its status whether it reads the format, and why not on standard error. must_trust: not
 * a file of another user, for root would execute what that user's daemon leads to. Returns 0; 1: it does not read it;
 * -EPERM: it was not run; or another negative errno. */
static int ask_program(const char *program, bool must_trust, const char *format) {
    char *arguments[] = {(char *)program, (char *)"--reads-estate", (char *)format, NULL};
    char path[64];
    pid_t pid;
    int status;

    _cleanup_(close_fdp) int fd = open(program, O_PATH); /* a script's interpreter opens it by its number */
    if (fd < 0)
        return -errno;
    if (must_trust && !is_trusted(fd))
        return -EPERM;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd); /* the path may lead to another file by now */
    int error = posix_spawn(&pid, path, NULL, NULL, arguments, environ);
    if (error != 0)
        return -error;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1;
}

/* The daemon that is to be followed. */
struct before {
    uint64_t pid;
    char identity[64]; /* which its successor has as well, if it goes on with the sessions */
    bool is_lost;      /* an operator agreed that the sessions end */
};

/* Tells what a restart loses although the next daemon can read the estate, and asks where sessions would end. */
static int tell_of_losses(const struct options *options, const struct cJSON *estate) {
    uint64_t n_sessions = reply_count(estate, "sessions.lost"), bytes = 0;

    reply_each(pool, estate, "pools") bytes += reply_count(pool, "lost_bytes");
    if (bytes > 0 && !options->json)
        fprintf(stderr,
                "%s cannot be lent any more after the restart, and come back when no process has them mapped "
                "('gpupoolctl estate' tells of which pools).\n",
                BYTES_TEXT(bytes));
    if (n_sessions == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "The service manager does not have all descriptors of %s: a restart ends them.\n",
            COUNT_TEXT(n_sessions, "session"));
    return answer_confirm(options, "Restart all the same?", "restarted");
}

/* Looks whether the next daemon's program can go on with what there is. */
static int check_program(const struct options *options, const struct cJSON *estate, struct before *before) {
    char path[PATH_MAX], format[FORMAT_SIZE];
    const char *program = options->daemon;

    int r = program == NULL ? find_program(before->pid, path) : 0;
    if (r < 0)
        return complain(EXIT_REFUSED,
                        "the program of pid %" PRIu64 " is not found: %s; name it with --daemon", before->pid,
                        r == -ESRCH ? "that process is no gpupoold" : strerror(-r));
    program = program == NULL ? path : program;
    write_format(estate, format);
    r = ask_program(program, options->daemon == NULL, format);
    if (r == -EPERM && options->daemon == NULL)
        return complain(EXIT_REFUSED,
                        "%s is another user's file, and is not executed unasked; name it with --daemon",
                        program);
    if (r < 0)
        return complain(EXIT_REFUSED, "%s cannot be asked whether it goes on with the estate: %s", program,
                        strerror(-r));
    if (r == 0)
        return tell_of_losses(options, estate);
    fprintf(stderr,
            "%s cannot go on with what this daemon has: a restart ends %s.\n"
            "Their processes keep the memory that they have mapped, and get no more.\n",
            program, COUNT_TEXT(reply_count(estate, "sessions.kept"), "session"));
    before->is_lost = true;
    return answer_confirm(options, "Restart all the same?", "restarted");
}

/* Tells of the daemon that answers, which is another process than before. */
static int tell_of_next(const struct options *options, const struct before *before, const struct cJSON *stats,
                        const struct answer *restart, uint64_t took_ns) {
    bool goes_on = strcmp(reply_text(stats, "daemon.identity"), before->identity) == 0;
    uint64_t n = 0;

    if (options->json && (goes_on || before->is_lost))
        return answer_show(options, restart, view_estate);
    reply_each(session, stats, "sessions") n += strcmp(reply_text(session, "state"), "active") == 0;
    printf("gpupoold %s %s %s, as process %" PRIu64 ", after %s\n", reply_text(stats, "daemon.version"),
           goes_on ? "goes on with" : "begins anew, with", COUNT_TEXT(n, "session"),
           reply_count(stats, "daemon.pid"), NS_TEXT(took_ns));
    if (goes_on || before->is_lost)
        return finish_output(EXIT_SUCCESS);
    return complain(EXIT_REFUSED, "the daemon did not go on with the sessions that there were: its log tells "
                                  "why");
}

/* Waits until another daemon answers, and shows how long that took. */
static int wait_for_next(const struct options *options, const struct before *before,
                         const struct answer *restart, uint64_t begin_ns) {
    uint64_t end_ns = clock_deadline_ns(begin_ns, options->timeout_ns);
    struct address address = options->address;
    struct reply *reply;

    address.identity[0] = '\0'; /* any daemon's answer will do */
    for (uint64_t left_ns = clock_left_ns(end_ns); left_ns > 0; left_ns = clock_left_ns(end_ns)) {
        if (question_ask(&address, left_ns, "stats", &reply) == 0) {
            _cleanup_(reply_freep) struct reply *owned = reply;
            if (owned->error_code == NULL && reply_count(owned->root, "daemon.pid") != before->pid)
                return tell_of_next(options, before, owned->root, restart, clock_now_ns() - begin_ns);
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)LOOK_NS}, NULL);
    }
    return complain(
        EXIT_UNREACHABLE,
        "no other daemon answers after %s: is there a service manager that starts one? What the daemon had "
        "is kept there",
        NS_TEXT(options->timeout_ns));
}

/* Which daemon answers now. */
static int identify(const struct options *options, struct before *ret_before) {
    struct reply *ping;

    if (question_ask(&options->address, options->timeout_ns, "ping", &ping) != 0)
        return complain(EXIT_UNREACHABLE, "the daemon does not answer any more");
    _cleanup_(reply_freep) struct reply *owned = ping;
    if (owned->error_code != NULL)
        return complain(EXIT_REFUSED, "%s", owned->error_message);
    *ret_before = (struct before){.pid = reply_count(owned->root, "daemon.pid")};
    snprintf(ret_before->identity, sizeof ret_before->identity, "%s",
             reply_text(owned->root, "daemon.identity"));
    return EXIT_SUCCESS;
}

int upgrade_run(const struct options *options) {
    _cleanup_(answer_deinit) struct answer answer = {0}, done = {0};
    struct before before;

    int code = answer_ask(options, "estate", "{\"command\":\"estate\"}", &answer);
    if (code != EXIT_SUCCESS)
        return code;
    if (answer.reply->error_code != NULL && strcmp(answer.reply->error_code, "unknown-command") == 0)
        return answer_refuse(
            options, "no-estate",
            "the daemon is of a release that keeps nothing: a restart by its service manager ends all "
            "sessions");
    if (answer.reply->error_code != NULL)
        return answer_show(options, &answer, view_estate);
    code = identify(options, &before);
    const struct cJSON *estate = reply_object(answer.reply->root, "estate");
    if (code == EXIT_SUCCESS && reply_flag(estate, "kept"))
        code = check_program(options, estate, &before);
    if (code != EXIT_SUCCESS)
        return code;
    uint64_t begin_ns = clock_now_ns();
    code = answer_ask(options, "restart", "{\"command\":\"restart\"}", &done);
    if (code != EXIT_SUCCESS || done.reply->error_code != NULL)
        return code != EXIT_SUCCESS ? code : answer_show(options, &done, view_estate);
    return wait_for_next(options, &before, &done, begin_ns);
}
