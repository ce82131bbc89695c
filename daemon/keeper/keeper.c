/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/keeper/say.h"
#include "daemon/keeper/spawn.h"
#include "daemon/keeper/state.h"

/* Pauses before a daemon is started again. The first comes after a daemon that was ready for long. A program
 * that connects meanwhile waits, so all are short against its timeout, which is 10 s by default. */
static const uint64_t pauses_ns[] = {0, 20 * NS_PER_MS, 50 * NS_PER_MS, 100 * NS_PER_MS};
/* After so many deaths in a row before READY, the next start hardly goes better. The keeper says so, and starts
 * a daemon at this interval: a start can take a second of a processor. */
#define DEATHS_MANY   10u
#define PAUSE_LONG_NS NS_PER_S
/* A daemon that was ready for so long worked: its death begins the pauses anew. */
#define STEADY_NS (10 * NS_PER_S)
/* The keeper's own files, and room for those that a message brings. */
#define OWN_DESCRIPTORS 300u

enum {
    GOES_ON = -1, /* the keeper has no exit status yet */
};

struct keeper {
    const struct keeper_options *options;
    struct keeper_state state;
    sigset_t signals;
    int signal_fd;
    int exit_status;   /* or GOES_ON */
    bool must_execute; /* the program, in this process */
    bool complained;   /* that a descriptor was refused, since one was stored */
};

/* --- messages of the daemon --- */

/* The variables that the keeper passes on to its own service manager. */
static const char *const forwarded[] = {
    "READY=", "RELOADING=", "MONOTONIC_USEC=", "STOPPING=", "STATUS=", "WATCHDOG="};

struct assignments {
    bool stores, removes, is_ready;
    const char *name; /* NULL: none, as with those that follow */
    const char *main_pid, *status;
    char forward[INBOX_TEXT_MAX + 2u]; /* lines for the service manager; "": none */
};

static void read_assignments(char *text, struct assignments *ret) {
    char *rest = text, *line;
    size_t used = 0;

    *ret = (struct assignments){0};
    while ((line = strsep(&rest, "\n")) != NULL) {
        if (strcmp(line, "FDSTORE=1") == 0)
            ret->stores = true;
        else if (strcmp(line, "FDSTOREREMOVE=1") == 0)
            ret->removes = true;
        else if (strcmp(line, "READY=1") == 0)
            ret->is_ready = true;
        else if (strncmp(line, "FDNAME=", strlen("FDNAME=")) == 0)
            ret->name = line + strlen("FDNAME=");
        else if (strncmp(line, "MAINPID=", strlen("MAINPID=")) == 0)
            ret->main_pid = line + strlen("MAINPID=");
        else if (strncmp(line, KEEPER_STATUS "=", strlen(KEEPER_STATUS "=")) == 0)
            ret->status = line + strlen(KEEPER_STATUS "=");
        for (size_t i = 0; i < ARRAY_LENGTH(forwarded); i++)
            if (strncmp(line, forwarded[i], strlen(forwarded[i])) == 0)
                used += (size_t)snprintf(ret->forward + used, sizeof ret->forward - used, "%s\n", line);
    }
}

/* Stores the descriptors of a message. The protocol has no answer, so a refusal is a line in the log. */
static void store(struct keeper *keeper, struct inbox_message *message, const char *name) {
    for (unsigned i = 0; i < message->n_fds; i++) {
        int r = kept_add(&keeper->state.kept, take_fd(&message->fds[i]), name);
        if (r < 0 && !keeper->complained)
            say(SAY_WARNING, "a descriptor is not stored: %s (%zu are; RLIMIT_NOFILE bounds their number)",
                strerror(-r), keeper->state.kept.count);
        keeper->complained = r < 0;
    }
}

/* --- a daemon that another keeper started --- */

static bool is_adopted(const struct keeper_state *state) {
    return state->adopted_fd >= 0 && state->child == state->adopted;
}

static void forget_adopted(struct keeper_state *state) {
    state->adopted_fd = close_fd(state->adopted_fd);
    state->adopted = 0;
    state->told_status = -1;
}

/* The child names the daemon that it is about to ask, or itself where there is none after all. */
static void note_named(struct keeper_state *state, const char *number) {
    int pid = atoi(number);

    forget_adopted(state);
    if (pid <= 0 || pid == state->child)
        return;
    state->adopted_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (state->adopted_fd < 0) {
        say(SAY_WARNING, "process %d, a daemon that is alive, cannot be watched: %s", pid, strerror(errno));
        return;
    }
    state->adopted = pid;
}

static void tell_child(const struct keeper *keeper, int number) {
    if (is_adopted(&keeper->state))
        (void)syscall(SYS_pidfd_send_signal, keeper->state.adopted_fd, number, NULL, 0);
    else if (keeper->state.child > 0)
        kill(keeper->state.child, number);
}

/* Whether a message counts. */
static bool is_heard(const struct keeper_state *state, pid_t sender) {
    return sender > 0 && (sender == state->child || (state->adopted_fd >= 0 && sender == state->adopted));
}

static void note_ready(struct keeper *keeper) {
    struct keeper_state *state = &keeper->state;

    if (state->is_ready)
        return; /* a reload has ended */
    state->is_ready = true;
    state->ready_ns = clock_now_ns();
    state->deaths = 0;
    if (is_adopted(state))
        say(SAY_INFO, "the daemon (process %d), which had lost its keeper, has this one now; %s kept for it",
            (int)state->child, COUNT_TEXT(state->kept.count, "descriptor"));
    else if (state->starts > 1)
        say(SAY_INFO, "the daemon serves again, as process %d", (int)state->child);
    if (state->ready_fd >= 0 && write(state->ready_fd, "1", 1) != 1)
        say(SAY_WARNING, "no process reads --ready-fd");
    state->ready_fd = close_fd(state->ready_fd);
    if (state->must_reload)
        tell_child(keeper, SIGHUP);
    state->must_reload = false;
}

/* Does what a message says, in systemd's order: what it removes goes before what it stores comes. A BARRIER is
 * a descriptor that is closed when the messages before it are done, which is now. */
static void take_message(struct keeper *keeper, struct inbox_message *message) {
    struct assignments assignments;

    if (!is_heard(&keeper->state, message->pid)) {
        say(SAY_WARNING, "a message of process %d, which is not the daemon, is ignored", (int)message->pid);
        return;
    }
    if (message->is_cut) {
        say(SAY_WARNING,
            "a message of the daemon is ignored: it came without its end or its descriptors; are "
            "any left (RLIMIT_NOFILE)?");
        return;
    }
    if (keeper->state.adopted_fd >= 0 && message->pid == keeper->state.adopted)
        keeper->state.child = keeper->state.adopted; /* it agreed; the child that asked it is about to end */
    read_assignments(message->text, &assignments);
    if (assignments.removes && assignments.name != NULL)
        kept_remove(&keeper->state.kept, assignments.name);
    if (assignments.stores)
        store(keeper, message, assignments.name);
    if (assignments.main_pid != NULL && message->pid == keeper->state.child)
        note_named(&keeper->state, assignments.main_pid);
    if (assignments.status != NULL)
        keeper->state.told_status = atoi(assignments.status);
    if (assignments.is_ready)
        note_ready(keeper);
    if (assignments.forward[0] != '\0')
        sd_notify(0, assignments.forward); /* does nothing without a service manager */
}

static void drain_inbox(struct keeper *keeper) {
    static struct inbox_message message; /* there is one thread; 5 KiB */

    while (inbox_receive(&keeper->state.inbox, &message) > 0) {
        take_message(keeper, &message);
        inbox_message_end(&message);
    }
}

/* --- start and end of the daemon --- */

static void start_daemon(struct keeper *keeper) {
    struct keeper_state *state = &keeper->state;
    const struct spawn spawn = {
        .program = state->program,
        .arguments = keeper->options->daemon_arguments,
        .notify_path = state->inbox.path,
        .kept = &state->kept,
        .deaths = state->deaths,
        .unblocked = &keeper->signals,
    };

    state->is_ready = false;
    pid_t child = spawn_run(&spawn);
    if (child > 0) {
        state->child = child;
        state->starts++;
        return;
    }
    say(SAY_ERROR, "a process for the daemon cannot be made: %s", strerror(-child));
    state->next_start_ns = clock_now_ns() + PAUSE_LONG_NS;
}

/* How long to wait before the next start, after a death. */
static uint64_t next_pause_ns(struct keeper_state *state) {
    if (state->is_ready && clock_now_ns() - state->ready_ns >= STEADY_NS)
        state->pauses = 0;
    uint64_t pause_ns = pauses_ns[state->pauses];
    if (state->pauses + 1 < ARRAY_LENGTH(pauses_ns))
        state->pauses++;
    return state->deaths >= DEATHS_MANY ? PAUSE_LONG_NS : pause_ns;
}

/* How a daemon ended. */
struct ending {
    enum {
        EXITED,
        KILLED,
        UNKNOWN
    } kind;   /* UNKNOWN: of one that is no child, and said nothing */
    int code; /* the status, or the signal */
};

static void say_end(const struct keeper *keeper, int pid, const struct ending *ending) {
    const struct keeper_state *state = &keeper->state;
    char how[64] = "ended";

    if (ending->kind != UNKNOWN)
        snprintf(how, sizeof how, "%s %d",
                 ending->kind == KILLED ? "was killed by signal" : "ended with status", ending->code);
    say(SAY_WARNING, "the daemon (process %d) %s%s; it is started again, and %s kept for it", pid, how,
        state->is_ready ? "" : " before it was ready", COUNT_TEXT(state->kept.count, "descriptor"));
}

/* The daemon ended, and its messages were read. */
static void note_end(struct keeper *keeper, const struct ending *ending) {
    struct keeper_state *state = &keeper->state;
    bool is_killed = ending->kind != EXITED;
    int code = ending->code, pid = (int)state->child;

    state->child = 0;
    state->status = is_killed ? 128 + code : code;
    if (state->is_stopping || (!is_killed && (code == 0 || (state->starts == 1 && !state->is_ready)))) {
        keeper->exit_status = state->status;
        return;
    }
    if (!is_killed && code == KEEPER_RESTART_STATUS && state->is_ready) {
        say(SAY_INFO, "the daemon (process %d) restarts; %s kept for it", pid,
            COUNT_TEXT(state->kept.count, "descriptor"));
        state->next_start_ns = clock_now_ns();
        return;
    }
    if (!state->is_ready)
        state->deaths++;
    say_end(keeper, pid, ending);
    if (state->deaths == DEATHS_MANY)
        say(SAY_ERROR,
            "the daemon died %u times in a row before it was ready: the keeper tries again every second, and "
            "keeps all descriptors; the daemon's messages tell why",
            DEATHS_MANY);
    state->next_start_ns = clock_now_ns() + next_pause_ns(state);
}

/* The child ended, with the status of waitpid(). One that found a daemon alive leaves its place to that. */
static void note_child_end(struct keeper *keeper, int status) {
    struct keeper_state *state = &keeper->state;
    const struct ending ending = {WIFSIGNALED(status) ? KILLED : EXITED,
                                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status)};

    if (ending.kind == EXITED && ending.code == KEEPER_ADOPTED_STATUS && state->adopted_fd >= 0 &&
        !state->is_stopping) {
        state->child = state->adopted;
        return;
    }
    forget_adopted(state);
    note_end(keeper, &ending);
}

static void note_adopted_end(struct keeper *keeper) {
    struct keeper_state *state = &keeper->state;
    struct ending ending = {UNKNOWN, 0};

    if (!is_adopted(state) || poll(&(struct pollfd){.fd = state->adopted_fd, .events = POLLIN}, 1, 0) <= 0)
        return;
    drain_inbox(keeper);
    if (state->told_status >= 0)
        ending = (struct ending){EXITED, state->told_status};
    forget_adopted(state);
    note_end(keeper, &ending);
}

/* Reaps all children that ended. A keeper that is process 1 of a container gets those of others, too. */
static void reap(struct keeper *keeper) {
    siginfo_t info;

    for (;;) {
        int status;
        info.si_pid = 0;
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
            return;
        if (info.si_pid == keeper->state.child)
            drain_inbox(keeper); /* its messages count as long as no other process can have its number */
        if (waitpid(info.si_pid, &status, 0) == keeper->state.child && keeper->state.child > 0)
            note_child_end(keeper, status);
    }
}

/* --- signals --- */

/* Executes the program anew in this process: the daemon stays its child. Returns where that failed. */
static void execute_anew(struct keeper *keeper) {
    int fd = state_pass(&keeper->state);

    if (fd >= 0) {
        execv(keeper->state.program, keeper->options->keeper_arguments);
        int error = errno;
        state_pass_not(&keeper->state, fd);
        fd = -error;
    }
    say(SAY_ERROR, "%s cannot be executed: %s; this keeper goes on", keeper->state.program, strerror(-fd));
}

static void take_signal(struct keeper *keeper, const struct signalfd_siginfo *info) {
    /* The kernel sends a terminal's signals to all processes in front of it, so the daemon has it already. */
    bool has_daemon = info->ssi_code == SI_KERNEL;
    int number = (int)info->ssi_signo;

    switch (number) {
    case SIGTERM:
    case SIGINT:
        keeper->state.is_stopping = true;
        if (keeper->state.child == 0)
            keeper->exit_status = keeper->state.status;
        if (!has_daemon)
            tell_child(keeper, number);
        break;
    case SIGHUP:
        if (!keeper->state.is_ready) /* a daemon that is not yet ready would die of it */
            keeper->state.must_reload = true;
        else if (!has_daemon)
            tell_child(keeper, number);
        break;
    case SIGUSR2:
        keeper->must_execute = true;
        break;
    default: /* SIGCHLD: after each turn */
        break;
    }
}

static void take_signals(struct keeper *keeper) {
    struct signalfd_siginfo info;

    while (read(keeper->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        take_signal(keeper, &info);
}

/* --- the keeper --- */

/* The path by which the daemon's file is found at each start: the one that this program was called by, where it
 * leads to this program. An upgrade can change a link on it. */
static int find_program(const char *name, char path[static PATH_MAX]) {
    static const char gone[] = " (deleted)";
    struct stat called, own;

    if (strchr(name, '/') != NULL && stat(name, &called) == 0 && stat("/proc/self/exe", &own) == 0 &&
        called.st_dev == own.st_dev && called.st_ino == own.st_ino) {
        if (name[0] == '/')
            return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX ? 0 : -ENAMETOOLONG;
        if (getcwd(path, PATH_MAX) == NULL)
            return -errno;
        size_t length = strlen(path);
        return snprintf(path + length, PATH_MAX - length, "/%s", name) < (int)(PATH_MAX - length)
                   ? 0
                   : -ENAMETOOLONG;
    }
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (n < 0)
        return -errno;
    path[n] = '\0';
    size_t length = (size_t)n, tail = strlen(gone);
    if (length > tail && strcmp(path + length - tail, gone) == 0) /* replaced since this process began */
        path[length - tail] = '\0';
    return 0;
}

/* The daemon inherits the limit, and has all stored descriptors beside its own. Returns how many may be stored.
 */
static size_t raise_descriptors(void) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur <= OWN_DESCRIPTORS) {
        say(SAY_WARNING,
            "nothing can be held for the daemon: RLIMIT_NOFILE allows %u descriptors at most, "
            "which the keeper itself may need; raise the hard limit (ulimit -Hn)",
            OWN_DESCRIPTORS);
        return 0;
    }
    return limit.rlim_cur - OWN_DESCRIPTORS;
}

/* Sockets of a service manager that started the keeper are passed on to each daemon. */
static void take_inherited(struct keeper *keeper) {
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);

    for (int i = 0; i < n; i++) {
        int r = kept_add(&keeper->state.kept, SD_LISTEN_FDS_START + i, names[i]);
        if (r < 0)
            say(SAY_WARNING, "the descriptor '%s' of the service manager is not kept: %s", names[i],
                strerror(-r));
        free(names[i]);
    }
    free(names);
}

static int open_signals(struct keeper *keeper) {
    static const int taken[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR2};

    sigemptyset(&keeper->signals);
    for (size_t i = 0; i < ARRAY_LENGTH(taken); i++)
        sigaddset(&keeper->signals, taken[i]);
    signal(SIGCHLD, SIG_DFL); /* where it is ignored, children leave no status. One that is pending goes */
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &keeper->signals, NULL) < 0)
        return -errno;
    keeper->signal_fd = signalfd(-1, &keeper->signals, SFD_CLOEXEC | SFD_NONBLOCK);
    return keeper->signal_fd < 0 ? -errno : 0;
}

/* Goes on where the keeper before the exec was, or begins. */
static int begin(struct keeper *keeper) {
    struct keeper_state *state = &keeper->state;

    int r = open_signals(keeper);
    if (r < 0)
        return r;
    kept_init(&state->kept, raise_descriptors());
    r = state_take(state);
    if (r < 0)
        say(SAY_WARNING, "not all of what the keeper knew before is known: %s", strerror(-r));
    if (r != 0) {
        say(SAY_INFO, "gpupoold %s keeps process %d and %s", GPUPOOL_VERSION, (int)state->child,
            COUNT_TEXT(state->kept.count, "descriptor"));
        return state->inbox.fd >= 0 ? 0 : -EINVAL;
    }
    state->ready_fd = keeper->options->ready_fd;
    if (state->ready_fd >= 0)
        fcntl(state->ready_fd, F_SETFD, FD_CLOEXEC);
    take_inherited(keeper);
    r = find_program(keeper->options->daemon_arguments[0], state->program);
    return r < 0 ? r : inbox_open(&state->inbox);
}

/* One turn: starts the daemon where it is time, waits, and does what there is to do. */
static void turn(struct keeper *keeper) {
    struct keeper_state *state = &keeper->state;

    reap(keeper); /* also what died while this process executed the program: no signal tells of it any more */
    note_adopted_end(keeper);
    if (keeper->exit_status != GOES_ON)
        return;
    uint64_t left_ns = clock_left_ns(state->next_start_ns);
    if (state->child == 0 && left_ns == 0) {
        start_daemon(keeper);
        left_ns = clock_left_ns(state->next_start_ns);
    }
    struct pollfd fds[] = {{.fd = state->inbox.fd, .events = POLLIN},
                           {.fd = keeper->signal_fd, .events = POLLIN},
                           {.fd = is_adopted(state) ? state->adopted_fd : -1, .events = POLLIN}};
    int timeout_ms = state->child > 0 ? -1 : (int)(left_ns / NS_PER_MS) + 1;
    if (poll(fds, ARRAY_LENGTH(fds), timeout_ms) < 0 && errno != EINTR)
        say(SAY_ERROR, "poll: %s", strerror(errno));
    drain_inbox(keeper);
    take_signals(keeper);
    reap(keeper);
    note_adopted_end(keeper);
    /* Last: the next program does not know which signals were taken. All that they led to is in the state. */
    if (keeper->must_execute && keeper->exit_status == GOES_ON)
        execute_anew(keeper);
    keeper->must_execute = false;
}

int keeper_run(const struct keeper_options *options) {
    struct keeper keeper = {.options = options, .signal_fd = -1, .exit_status = GOES_ON};

    keeper.state.inbox.fd = keeper.state.ready_fd = keeper.state.adopted_fd = -1;
    keeper.state.told_status = -1;
    keeper.state.status = EXIT_FAILURE; /* where no daemon ran */
    int r = begin(&keeper);
    if (r < 0) {
        say(SAY_ERROR, "the keeper cannot start: %s", strerror(-r));
        keeper.exit_status = EXIT_FAILURE;
    }
    while (keeper.exit_status == GOES_ON)
        turn(&keeper);
    kept_deinit(&keeper.state.kept);
    inbox_close(&keeper.state.inbox);
    close_fd(keeper.state.ready_fd);
    close_fd(keeper.state.adopted_fd);
    close_fd(keeper.signal_fd);
    return keeper.exit_status;
}
