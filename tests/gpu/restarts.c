/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restarts: a daemon with a keeper, or under systemd, is killed again and again under a mixed load, and upgraded, and
 * nothing is lost, nothing is lent twice, and no call fails.
 *
 * Workers (restarts_parts.c) take buffers of device and host pools, with and without a cache, by a call and by
 * submitted requests of which some are cancelled. They write them behind streams, look whether they stay as they were
 * written, share them, send them, revoke some of what they sent, and give them back behind work that is under way.
 * Guests share buffers with them and are killed at any moment. So are victims (kills_parts.c), some with a kernel in
 * flight, some with a child that has their descriptors. Others come in their place. (On the simulation the work of
 * victims ends with them: what it could show there is the first word of a segment, of which others have parts here.)
 *
 *     restarts [--gpu cuda|sim] [--restarts N] [--workers N] [--guests N] [--pools vmm|host|both]
 *              [--limit tight|roomy|MIB] [--hold GIB] [--seconds N] [--seed N]
 *              [--upgrades N] [--unit NAME --log FILE] [--other-daemon FILE] [--libraries FOLDER,...]
 *
 * --limit: of each pool. "tight": requests wait for room. "roomy": none does, and an acquire that takes long has failed
 * as any other call has. --hold: a process has so much device memory throughout, beside the limit. --seconds: a run that
 * takes longer has failed. --upgrades: one restart in N is "gpupoolctl upgrade" ($GPUPOOLCTL), else SIGKILL.
 * --other-daemon: this daemon and the other one take turns, and so do their keepers. --libraries: the workers take the
 * client libraries in these folders in turn; "-" is this build's. Other processes connect while daemons end, which the
 * library of 0.1.0 does not take well, nor does it a SIGKILL: no daemon of an upgrade is killed then.
 *
 * Without --unit, the program starts a keeper with $GPUPOOL_DAEMON and ends it. --unit: of a systemd that is process 1
 * here. The unit runs already, with the sockets of systemd/ and with pools of the limit, and appends its log to the file
 * (system/restarts_systemd.py). The manager, keeper or systemd, executes itself anew beside some of the restarts.
 *
 * Calls may take 2 s longer than a daemon was away at most. The time counts beside it that the machine let the driver
 * sleep too long. Requests may end without an answer (TIMED_OUT) where both together are half of the library's grace.
 * Exit status 0: no foreign write, no call that failed, nothing lost. Device pools have export = vmm.
 */
#include "tests/gpu/restarts.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/kills.h"
#include "tests/gpu/restarts_daemon.h"
#include "tests/gpu/restarts_programs.h"

#define WORKERS_MAX 16u
#define VICTIMS     2u
#define GUESTS_MAX  8u
#define AWAY_MAX    4096u
/* Beside the time that no daemon was there, on a machine with other load. */
#define LATE_NS (2 * KILLS_NS_PER_S)
#define GRACE_NS                                                                                             \
    KILLS_NS_PER_S /* of the library: a request ends with TIMED_OUT so long after its own timeout */
#define TIGHT_MIB  32u
#define ROOMY_MIB  1024u
#define TRIM_EACH  8u  /* restarts: what is idle goes back to the driver */
#define FD_OF_PART 100 /* descriptors for parts are above, before each gets them at their places */

struct plan {
    const char *gpu, *pools, *unit, *log;
    unsigned restarts, workers, guests, limit_mib, hold_gib, seconds, upgrades;
    uint64_t seed;
    struct restarts_programs *programs;
};

struct process {
    pid_t pid;
    int output;
    uint64_t end_ns; /* of a victim or guest */
    const char *part;
};

/* Times from the beginning of a restart to a daemon that serves. */
struct times {
    uint64_t ns[AWAY_MAX];
    unsigned n;
};

struct drive {
    const struct plan *plan;
    char folder[64];
    struct restarts_daemon daemon;
    struct process workers[WORKERS_MAX], mortals[VICTIMS + GUESTS_MAX], holder, upgrade;
    int pairs[WORKERS_MAX][2]; /* from each worker to the next: its own end, and the next one's */
    int table;
    struct times killed_once, upgraded;
    uint64_t longest_away_ns;  /* of all restarts */
    uint64_t longest_stall_ns; /* of this process, in a rest: the machine is that busy */
    unsigned restarts, upgrades, killed;
    uint64_t random, start_ns;
};

static void fail(const struct drive *drive, const char *what) {
    fprintf(stderr,
            "restarts: %s, after %u restarts and %.1f s; the driver slept at most %.0f ms too long; the "
            "daemon's last words:\n",
            what, drive->restarts, (double)(kills_now_ns() - drive->start_ns) / 1e9,
            (double)drive->longest_stall_ns / 1e6);
    restarts_show_log(&drive->daemon);
    exit(1);
}

/* --- processes --- */

/* worker: its number; any other: -1. */
static void be_part(const struct drive *drive, const char *part, uint64_t seed, int worker, int output) {
    char text[24];

    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    dup2(output, STDOUT_FILENO);
    if (worker >= 0) {
        restarts_programs_choose(drive->plan->programs, (unsigned)worker);
        unsigned before = ((unsigned)worker + drive->plan->workers - 1) % drive->plan->workers;
        dup2(drive->pairs[before][1], RESTARTS_FROM_FD);
        dup2(drive->pairs[worker][0], RESTARTS_TO_FD);
    }
    dup2(drive->table, RESTARTS_TABLE_FD);
    execl("/proc/self/exe", "restarts", "--part", part, text, drive->plan->pools, (char *)NULL);
    _exit(127);
}

static struct process start(const struct drive *drive, const char *part, uint64_t seed, int worker) {
    struct process process = {.part = part};
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0 || (process.pid = fork()) < 0) {
        perror("restarts");
        exit(1);
    }
    if (process.pid == 0)
        be_part(drive, part, seed, worker, ends[1]);
    close(ends[1]);
    process.output = ends[0];
    return process;
}

static int above(const struct drive *drive, int fd) {
    int high = fcntl(fd, F_DUPFD_CLOEXEC, FD_OF_PART);

    if (fd < 0 || high < 0)
        fail(drive, "there is no descriptor");
    close(fd);
    return high;
}

static void prepare_parts(struct drive *drive) {
    drive->table = memfd_create("restarts", MFD_CLOEXEC);
    if (drive->table < 0 || ftruncate(drive->table, sizeof(struct restarts_table)) < 0)
        fail(drive, "there is no table");
    drive->table = above(drive, drive->table);
    for (unsigned i = 0; i < drive->plan->workers; i++) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, drive->pairs[i]) < 0)
            fail(drive, "there are no sockets");
        for (unsigned k = 0; k < 2; k++)
            drive->pairs[i][k] = above(drive, drive->pairs[i][k]);
    }
}

static void fail_part(const struct drive *drive, const struct process *process, int status) {
    char text[96];

    if (WIFEXITED(status) && WEXITSTATUS(status) == RESTARTS_FOREIGN)
        exit(RESTARTS_FOREIGN);
    snprintf(text, sizeof text, "the %s %d ended with status 0x%x", process->part, (int)process->pid,
             (unsigned)status);
    fail(drive, text);
}

/* Kills one whose time is over, or that has to go. One that ended by itself has failed. */
static void end_mortal(struct drive *drive, struct process *mortal) {
    int status;

    kill(mortal->pid, SIGKILL);
    waitpid(mortal->pid, &status, 0);
    close(mortal->output);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail_part(drive, mortal, status);
    mortal->pid = 0;
    drive->killed++;
}

static void begin_mortal(struct drive *drive, unsigned i, uint64_t now_ns) {
    static const char *const sorts[] = {"victim", "parent", "random", "random"};
    uint64_t random = kills_next_random(&drive->random);
    bool is_guest = i >= VICTIMS;

    drive->mortals[i] = start(drive, is_guest ? "guest" : sorts[random % 4], random, -1);
    drive->mortals[i].end_ns = now_ns + random / 8 % ((is_guest ? 1500 : 400) * KILLS_NS_PER_MS);
}

static void look_after(struct drive *drive) {
    uint64_t now_ns = kills_now_ns();
    int status;

    for (unsigned i = 0; i < drive->plan->workers; i++)
        if (waitpid(drive->workers[i].pid, &status, WNOHANG) != 0)
            fail_part(drive, &drive->workers[i], status);
    for (unsigned i = 0; i < VICTIMS + drive->plan->guests; i++) {
        if (drive->mortals[i].pid != 0 && now_ns >= drive->mortals[i].end_ns)
            end_mortal(drive, &drive->mortals[i]);
        if (drive->mortals[i].pid == 0)
            begin_mortal(drive, i, now_ns);
    }
    if (drive->upgrade.pid > 0 && waitpid(drive->upgrade.pid, &status, WNOHANG) != 0) {
        if (status != 0)
            fail_part(drive, &drive->upgrade, status);
        drive->upgrade.pid = 0;
    }
    if (drive->plan->unit == NULL && waitpid(drive->daemon.manager, &status, WNOHANG) != 0)
        fail_part(drive, &(struct process){.part = "keeper", .pid = drive->daemon.manager}, status);
    if (now_ns - drive->start_ns > drive->plan->seconds * KILLS_NS_PER_S)
        fail(drive, "it takes too long");
}

static void rest(struct drive *drive, uint64_t ns) {
    uint64_t now_ns = kills_now_ns(), end_ns = now_ns + ns;

    do {
        look_after(drive);
        uint64_t before_ns = kills_now_ns();
        kills_rest_ns(KILLS_NS_PER_MS);
        now_ns = kills_now_ns();
        if (now_ns - before_ns > drive->longest_stall_ns)
            drive->longest_stall_ns = now_ns - before_ns;
    } while (now_ns < end_ns);
}

/* --- the daemon --- */

static void find_daemon(struct drive *drive) {
    const struct restarts_pools_setting setting = {.gpu = drive->plan->gpu,
                                                   .device_mib =
                                                       drive->plan->limit_mib + 1024 * drive->plan->hold_gib,
                                                   .host_mib = drive->plan->limit_mib};

    const char *failed = drive->plan->unit != NULL
                             ? restarts_adopt(&drive->daemon, drive->plan->unit, drive->plan->log)
                             : restarts_keep(&drive->daemon, drive->folder, &setting);
    if (failed == NULL)
        failed = restarts_note_store(&drive->daemon);
    if (failed != NULL)
        fail(drive, failed);
}

static pid_t wait_for_daemon(struct drive *drive) {
    pid_t pid;

    while ((pid = restarts_find(&drive->daemon)) == 0)
        rest(drive, 0);
    return pid;
}

static void turn_program(struct drive *drive) {
    if (!restarts_programs_turn(drive->plan->programs))
        fail(drive, "the daemon's program cannot be replaced");
}

static void wait_for_end(struct drive *drive, pid_t pid) {
    while (restarts_find(&drive->daemon) == pid)
        rest(drive, 0);
    drive->restarts++;
}

static void kill_daemon(struct drive *drive) {
    pid_t pid = wait_for_daemon(drive);

    turn_program(drive);
    kill(pid, SIGKILL);
    wait_for_end(drive, pid);
}

/* gpupoolctl goes on until the next daemon answers, and fails where that has not what this one has. */
static void begin_upgrade(struct drive *drive) {
    pid_t daemon = wait_for_daemon(drive);

    turn_program(drive);
    drive->upgrade = (struct process){.pid = fork(), .part = "upgrade"};
    if (drive->upgrade.pid < 0)
        fail(drive, "gpupoolctl cannot be started");
    if (drive->upgrade.pid == 0)
        restarts_be_upgrade(&drive->daemon);
    wait_for_end(drive, daemon);
    drive->upgrades++;
}

static void wait_until_nothing_is_left(struct drive *drive) {
    uint64_t end_ns = kills_now_ns() + KILLS_PATIENCE_NS, amount;
    const char *left;
    char text[128];

    while ((left = restarts_find_left(&drive->daemon, &amount)) != NULL && kills_now_ns() < end_ns)
        kills_rest_ns(10 * KILLS_NS_PER_MS);
    if (left == NULL)
        return;
    const char *sessions = restarts_ask(&drive->daemon, "sessions");
    fprintf(stderr, "%s", sessions != NULL ? sessions : "no answer\n");
    snprintf(text, sizeof text, "at the end there are %s: %llu", left, (unsigned long long)amount);
    fail(drive, text);
}

/* --- the course --- */

static int compare_times(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static void note_time(struct times *times, uint64_t ns) {
    if (times->n < AWAY_MAX)
        times->ns[times->n++] = ns;
}

/* Kills or upgrades the daemon at some moment, and sometimes kills the next one in its first steps, and waits for one
 * that serves. */
static void restart(struct drive *drive) {
    uint64_t random = kills_next_random(&drive->random);
    bool upgrades =
        drive->plan->upgrades > 0 && kills_next_random(&drive->random) % drive->plan->upgrades == 0;
    bool twice = random % 5 == 0 && !(upgrades && drive->plan->programs->libraries != NULL);
    bool is_unit = drive->plan->unit != NULL;
    /* systemd can take seconds for it on a busy machine. */
    bool executes = random % (is_unit ? 64 : drive->plan->programs->other_daemon != NULL ? 4 : 16) == 1;

    rest(drive, random % (150 * KILLS_NS_PER_MS));
    unsigned n_ready = restarts_count_ready(&drive->daemon);
    uint64_t begin_ns = kills_now_ns();
    /* Before: where systemd has read of a child's end, but not yet looked for it, the next program does not look either,
     * until another child ends, or the watchdog's time is over. */
    if (executes && is_unit)
        restarts_execute_manager(&drive->daemon);
    if (upgrades)
        begin_upgrade(drive);
    else
        kill_daemon(drive);
    if (executes && !is_unit)
        restarts_execute_manager(&drive->daemon);
    if (twice) { /* or while it reads, or as soon as it serves */
        wait_for_daemon(drive);
        kills_rest_ns(random / 8 % (25 * KILLS_NS_PER_MS));
        kill_daemon(drive);
        n_ready = restarts_count_ready(&drive->daemon);
    }
    /* With three deaths before that, the estate would be let go. */
    while (restarts_count_ready(&drive->daemon) == n_ready)
        rest(drive, KILLS_NS_PER_MS);
    if (!restarts_programs_run(drive->plan->programs, restarts_find(&drive->daemon)))
        fail(drive, "the daemon is of another program");
    uint64_t away_ns = kills_now_ns() - begin_ns;
    while (drive->upgrade.pid > 0)
        rest(drive, KILLS_NS_PER_MS);
    if (away_ns > drive->longest_away_ns)
        drive->longest_away_ns = away_ns;
    if (!twice)
        note_time(upgrades ? &drive->upgraded : &drive->killed_once, away_ns);
    if (drive->restarts % TRIM_EACH == 0)
        restarts_ask(&drive->daemon, "trim");
}

static void take_longest(uint64_t ns, const char *what, uint64_t *longest_ns, char longest[32]) {
    if (ns <= *longest_ns)
        return;
    *longest_ns = ns;
    snprintf(longest, 32, "%s", what);
}

static void end_workers(struct drive *drive, struct restarts_figures *ret_all) {
    struct restarts_figures one;
    int status;

    for (unsigned i = 0; i < drive->plan->workers; i++)
        kill(drive->workers[i].pid, SIGTERM);
    for (unsigned i = 0; i < drive->plan->workers; i++) {
        ssize_t n = read(drive->workers[i].output, &one, sizeof one);
        if (waitpid(drive->workers[i].pid, &status, 0) != drive->workers[i].pid || status != 0)
            fail_part(drive, &drive->workers[i], status);
        if (n != sizeof one)
            fail(drive, "a worker has no figures");
        ret_all->calls += one.calls;
        ret_all->checked += one.checked;
        ret_all->passed_on += one.passed_on;
        ret_all->refused += one.refused;
        ret_all->late += one.late;
        take_longest(one.longest_ns, one.longest, &ret_all->longest_ns, ret_all->longest);
        take_longest(one.longest_wait_ns, one.longest_wait, &ret_all->longest_wait_ns, ret_all->longest_wait);
    }
}

static void print_times(struct times *times, const char *since) {
    if (times->n == 0)
        return;
    qsort(times->ns, times->n, sizeof *times->ns, compare_times);
    printf("from %s to a daemon that serves: %.0f ms (median of %u), at most %.0f ms; ", since,
           (double)times->ns[times->n / 2] / 1e6, times->n, (double)times->ns[times->n - 1] / 1e6);
}

static void judge(struct drive *drive, const struct restarts_figures *all) {
    uint64_t away_ns = drive->longest_away_ns + drive->longest_stall_ns, most_ns = away_ns + LATE_NS;

    printf(
        "%u restarts, of which %u upgrades, and %u other processes killed, in %.1f s: %llu calls, %llu "
        "buffers checked, %llu tokens passed "
        "on, 0 foreign writes, 0 calls failed, 0 bytes lost; the longest call was %s, %.0f ms; of those that "
        "may wait for room %s, %.0f ms (%llu refused, "
        "%llu late); the driver slept %.0f ms too long\n",
        drive->restarts, drive->upgrades, drive->killed, (double)(kills_now_ns() - drive->start_ns) / 1e9,
        (unsigned long long)all->calls, (unsigned long long)all->checked, (unsigned long long)all->passed_on,
        all->longest, (double)all->longest_ns / 1e6, all->longest_wait, (double)all->longest_wait_ns / 1e6,
        (unsigned long long)all->refused, (unsigned long long)all->late,
        (double)drive->longest_stall_ns / 1e6);
    print_times(&drive->killed_once, "SIGKILL");
    print_times(&drive->upgraded, "the call of gpupoolctl upgrade");
    printf("at most %.0f ms, also with a SIGKILL for the next daemon\n",
           (double)drive->longest_away_ns / 1e6);
    fflush(stdout);
    if (restarts_log_says(&drive->daemon, "let go"))
        fail(drive, "an estate was let go");
    if (all->checked == 0 || all->passed_on == 0)
        fail(drive, "nothing was looked at");
    if (all->late > 0 && away_ns < GRACE_NS / 2)
        fail(drive, "requests had no answer in time");
    if (all->longest_ns > most_ns)
        fail(drive, "a call took too long");
    if (all->longest_wait_ns > most_ns + (drive->plan->limit_mib < ROOMY_MIB ? RESTARTS_WAIT_NS : 0))
        fail(drive, "a call that waited for room took too long");
}

static int run(const struct plan *plan) {
    static struct drive drive;
    struct restarts_figures all = {.longest = "none", .longest_wait = "none"};
    char command[96];
    int status;

    drive = (struct drive){.plan = plan, .folder = "/tmp/gpupool-restarts-XXXXXX", .random = plan->seed};
    if (mkdtemp(drive.folder) == NULL)
        return 1;
    drive.start_ns = kills_now_ns();
    if (!restarts_programs_begin(plan->programs, drive.folder))
        fail(&drive, "the daemon's program cannot be found");
    find_daemon(&drive);
    prepare_parts(&drive);
    if (plan->hold_gib > 0) {
        char byte;
        drive.holder = start(&drive, "holder", plan->hold_gib, -1);
        if (read(drive.holder.output, &byte, 1) != 1)
            fail(&drive, "the holder does not get its memory");
    }
    for (unsigned i = 0; i < plan->workers; i++)
        drive.workers[i] = start(&drive, "worker", plan->seed + i, (int)i);
    rest(&drive, 500 * KILLS_NS_PER_MS);
    while (drive.restarts < plan->restarts)
        restart(&drive);
    rest(&drive, 300 * KILLS_NS_PER_MS);
    for (unsigned i = 0; i < VICTIMS + plan->guests; i++)
        if (drive.mortals[i].pid != 0)
            end_mortal(&drive, &drive.mortals[i]);
    end_workers(&drive, &all);
    if (plan->hold_gib > 0) {
        kill(drive.holder.pid, SIGTERM);
        if (waitpid(drive.holder.pid, &status, 0) != drive.holder.pid || status != 0)
            fail(&drive, "the holder's memory has changed, or it failed");
    }
    wait_until_nothing_is_left(&drive);
    if (plan->unit == NULL && !restarts_end_keeper(&drive.daemon))
        fail(&drive, "the keeper does not end well");
    judge(&drive, &all);
    snprintf(command, sizeof command, "rm -r %s", drive.folder);
    return system(command) == 0 ? 0 : 1;
}

static int be(const char *part, uint64_t seed, const char *pools) {
    enum restarts_pools chosen = strcmp(pools, "vmm") == 0    ? RESTARTS_DEVICE
                                 : strcmp(pools, "host") == 0 ? RESTARTS_HOST
                                                              : RESTARTS_BOTH;

    if (strcmp(part, "worker") == 0)
        return restarts_worker(seed, chosen);
    if (strcmp(part, "guest") == 0)
        return restarts_guest(seed, chosen);
    if (strcmp(part, "holder") == 0)
        return restarts_holder(seed);
    return kills_victim(strcmp(part, "parent") == 0 ? "c" : strcmp(part, "random") == 0 ? "r" : "-", seed);
}

static unsigned read_limit(const char *text) {
    return strcmp(text, "tight") == 0   ? TIGHT_MIB
           : strcmp(text, "roomy") == 0 ? ROOMY_MIB
                                        : (unsigned)strtoul(text, NULL, 10);
}

int main(int argc, char **argv) {
    struct restarts_programs programs = {0};
    struct plan plan = {.gpu = "cuda",
                        .pools = "both",
                        .restarts = 50,
                        .workers = 4,
                        .guests = 2,
                        .limit_mib = TIGHT_MIB,
                        .seconds = 300,
                        .seed = 1,
                        .programs = &programs};

    if (argc == 5 && strcmp(argv[1], "--part") == 0)
        return be(argv[2], strtoull(argv[3], NULL, 10), argv[4]);
    for (int i = 1; i + 1 < argc; i += 2) {
        const struct {
            const char *name;
            unsigned *value;
        } numbers[] = {{"--restarts", &plan.restarts}, {"--workers", &plan.workers},
                       {"--guests", &plan.guests},     {"--hold", &plan.hold_gib},
                       {"--seconds", &plan.seconds},   {"--upgrades", &plan.upgrades}};
        if (strcmp(argv[i], "--gpu") == 0)
            plan.gpu = argv[i + 1];
        if (strcmp(argv[i], "--pools") == 0)
            plan.pools = argv[i + 1];
        if (strcmp(argv[i], "--unit") == 0)
            plan.unit = argv[i + 1];
        if (strcmp(argv[i], "--log") == 0)
            plan.log = argv[i + 1];
        if (strcmp(argv[i], "--limit") == 0)
            plan.limit_mib = read_limit(argv[i + 1]);
        if (strcmp(argv[i], "--seed") == 0)
            plan.seed = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--other-daemon") == 0)
            programs.other_daemon = argv[i + 1];
        if (strcmp(argv[i], "--libraries") == 0)
            programs.libraries = argv[i + 1];
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            if (strcmp(argv[i], numbers[k].name) == 0)
                *numbers[k].value = (unsigned)strtoul(argv[i + 1], NULL, 10);
    }
    if ((plan.unit == NULL ? getenv("GPUPOOL_DAEMON") == NULL : plan.log == NULL) || plan.workers == 0 ||
        plan.workers > WORKERS_MAX || plan.guests > GUESTS_MAX) {
        fputs("restarts: $GPUPOOL_DAEMON is to be the daemon's program, or --unit and --log tell of one that "
              "runs; and there are 1 to 16 workers and at most 8 guests\n",
              stderr);
        return 2;
    }
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    return run(&plan);
}
