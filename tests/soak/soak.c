/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The soak's driver. WORKERS processes of three users (of one, where it is not root) work on pools that are
 * too small for all of them. Each lives for some seconds at most and ends in one of the ways of enum way;
 * another takes its place. One a user stays for the whole time. Meanwhile the daemon is asked all its
 * questions, told to trim and to read its configuration again, in which one user's quota changes.
 *
 * In the end, when all workers have gone, nothing is leased, in quarantine or waited for, all memory can be
 * given back to the driver, and the daemon has the descriptors that it began with; and neither its memory nor
 * anything else that it uses grew in the second half (samples.c).
 *
 *     soak [--minutes N | --seconds N] [--acquires N] [--workers N] [--seed N] [--csv FILE]
 *
 * --acquires: it goes on until the daemon has had so many, however slow the machine is.
 *
 * Exit status 0: all that; 3: something grew, or was not given back; 1: anything else that is wrong.
 */
#include "tests/soak/soak.h"

#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"

#define MINUTES     30u
#define WORKERS     12u
#define WORKERS_MAX 64u
#define USERS       3u
/* Each run has users of its own, the daemon's and after it the workers': a daemon without privileges suspects
 * all processes of a dead one's user that it may not look into, also those of another soak. */
#define FIRST_USER   40000u
#define LAST_USER    60000u
#define SAMPLES      240u /* in all: enough for a quarter's maximum to mean something */
#define TICK_NS      (5 * NS_PER_MS)
#define QUESTION_NS  (100 * NS_PER_MS)
#define LIFE_MAX_NS  (3 * NS_PER_S)
#define STOP_MAX_NS  (300 * NS_PER_MS)
#define DYING_MAX_NS (60 * NS_PER_S) /* on a machine that has much else to do */
#define REPORTS      30u
#define DEFAULT_SEED 20240611u
#define EXIT_GREW    3

#define POOLS "[device]\nlimit = 48MiB\nstep = 4MiB\n[host]\nlimit = 48MiB\nstep = 4MiB\n"
/* One user's quota changes. */
static const char *const quotas[] = {
    "waiting = 2\ndevice = 16MiB\nhost = 16MiB\n",
    "waiting = 2\ndevice = 8MiB\nhost = 50%\n",
};

/* How a worker ends. */
enum way {
    WAY_KILL,
    WAY_STOP_AND_KILL,
    WAY_STOP_AND_GO_ON, /* is no end; another way is chosen later */
    WAY_FAREWELL,
    WAY_IN_FLIGHT,
    WAY_EXIT,
    WAY_CHILD,
    WAY_EXEC,
    WAY_FAULT,
    WAYS,
};

static const struct {
    const char *name;
    char order; /* 0: signals */
    int signal; /* by which the worker is to end; 0: exit status 0 */
} ways[WAYS] = {
    [WAY_KILL] = {"killed", 0, SIGKILL},
    [WAY_STOP_AND_KILL] = {"stopped and killed", 0, SIGKILL},
    [WAY_STOP_AND_GO_ON] = {"stopped for a while", 0, 0},
    [WAY_FAREWELL] = {"said farewell", SOAK_FAREWELL, 0},
    [WAY_IN_FLIGHT] = {"said farewell with work in flight", SOAK_IN_FLIGHT, 0},
    [WAY_EXIT] = {"exited without", SOAK_EXIT, 0},
    [WAY_CHILD] = {"killed, with a child that lived on", SOAK_CHILD, SIGKILL},
    [WAY_EXEC] = {"became another program", SOAK_EXEC, 0},
    [WAY_FAULT] = {"crashed", SOAK_FAULT, SIGSEGV},
};

enum lane_state {
    LANE_EMPTY,
    LANE_RUNS,
    LANE_STOPPED,
    LANE_ENDS, /* told to, or killed */
};

/* A worker's place. */
struct lane {
    enum lane_state state;
    struct puppet worker;
    unsigned user;
    bool stays;
    enum way way;
    uint64_t next_ns; /* RUNS: it ends then; STOPPED: so does that; ENDS: it has to have ended */
};

struct soak {
    struct test_daemon daemon;
    struct lane lanes[WORKERS_MAX];
    unsigned n_lanes;
    bool is_root;
    uid_t service; /* the daemon's user */
    uint64_t random, seconds, least_acquires, start_ns, question_ns, questions;
    uint64_t ends[WAYS], tokens;
    bool grew;
    struct samples samples;
};

static uint64_t up_to(struct soak *soak, uint64_t most) {
    return test_random(&soak->random) % most + 1;
}

static uid_t user_id(const struct soak *soak, unsigned user) {
    return soak->is_root ? soak->service + 1 + user : getuid();
}

static const char *config_text(const struct soak *soak, unsigned which) {
    static char text[TEST_CONFIG_SIZE];
    snprintf(text, sizeof text, "%s[quota user:%u]\n%s", POOLS, (unsigned)user_id(soak, 0), quotas[which]);
    return text;
}

/* --- workers --- */

static void lane_start(struct soak *soak, struct lane *lane) {
    static const char *const styles[] = {"", "", "t", "n", "nt", "h", "hn", "l"};
    char argument[64];

    snprintf(argument, sizeof argument, "%u:%llu:%s", (unsigned)user_id(soak, lane->user),
             (unsigned long long)test_random(&soak->random),
             lane->stays ? "t" : styles[up_to(soak, sizeof styles / sizeof *styles) - 1]);
    puppet_start_role(&lane->worker, &soak->daemon, "soak", argument);
    lane->state = LANE_RUNS;
    lane->way = (enum way)(up_to(soak, WAYS) - 1);
    /* some end when they have hardly begun, most have a life */
    lane->next_ns = lane->stays
                        ? NS_FOREVER
                        : clock_now_ns() + up_to(soak, up_to(soak, 4) == 1 ? LIFE_MAX_NS / 30 : LIFE_MAX_NS);
}

/* Tells it how to end. Returns whether there was room for the order. */
static bool lane_order(struct soak *soak, struct lane *lane, enum way way) {
    const struct soak_message message = {.verb = (uint32_t)ways[way].order,
                                         .milliseconds = (uint32_t)up_to(soak, SOAK_STAY_MAX_MS)};
    ssize_t n = send(lane->worker.fd, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n < 0 && errno == EAGAIN)
        return false;
    lane->way = way;
    lane->state = LANE_ENDS; /* or has: then its status says what was wrong */
    lane->next_ns = clock_now_ns() + DYING_MAX_NS;
    return true;
}

static void lane_kill(struct lane *lane) {
    assert_int_equal(kill(lane->worker.pid, SIGKILL), 0);
    lane->state = LANE_ENDS;
    lane->next_ns = clock_now_ns() + DYING_MAX_NS;
}

/* The actions that are due. */
static void lane_act(struct soak *soak, struct lane *lane) {
    uint64_t now_ns = clock_now_ns();

    if (now_ns < lane->next_ns)
        return;
    switch (lane->state) {
    case LANE_RUNS:
        if (lane->way == WAY_KILL) {
            lane_kill(lane);
        } else if (lane->way == WAY_STOP_AND_KILL || lane->way == WAY_STOP_AND_GO_ON) {
            assert_int_equal(kill(lane->worker.pid, SIGSTOP), 0);
            lane->state = LANE_STOPPED;
            lane->next_ns = now_ns + up_to(soak, STOP_MAX_NS);
        } else {
            lane_order(soak, lane, lane->way);
        }
        break;
    case LANE_STOPPED:
        if (lane->way == WAY_STOP_AND_KILL) {
            lane_kill(lane);
            break;
        }
        assert_int_equal(kill(lane->worker.pid, SIGCONT), 0);
        soak->ends[WAY_STOP_AND_GO_ON]++;
        lane->state = LANE_RUNS;
        lane->way = (enum way)(up_to(soak, WAYS) - 1);
        lane->next_ns = now_ns + up_to(soak, LIFE_MAX_NS);
        break;
    case LANE_ENDS:
        fail_msg("worker %d, which was to be one that %s, does not end", (int)lane->worker.pid,
                 ways[lane->way].name);
        break;
    case LANE_EMPTY:
        break;
    }
}

/* Takes in a worker that has ended, as it was told to and not otherwise. */
static void lane_reap(struct soak *soak, struct lane *lane) {
    int status, wanted = ways[lane->way].signal;

    if (lane->state == LANE_EMPTY || waitpid(lane->worker.pid, &status, WNOHANG) != lane->worker.pid)
        return;
    bool is_right = lane->state == LANE_ENDS &&
                    (wanted != 0 ? WIFSIGNALED(status) && WTERMSIG(status) == wanted : status == 0);
    if (!is_right)
        fail_msg("worker %d ended with status 0x%x %s", (int)lane->worker.pid, (unsigned)status,
                 lane->state != LANE_ENDS ? "by itself" : ways[lane->way].name);
    lane->worker.fd = close_fd(lane->worker.fd);
    lane->state = LANE_EMPTY;
    soak->ends[lane->way]++;
}

/* Hands what it offers on to another worker of its user. One that is busy misses it. */
static void lane_hand_on(struct soak *soak, struct lane *lane) {
    struct soak_message message;

    while (recv(lane->worker.fd, &message, sizeof message, MSG_DONTWAIT) == (ssize_t)sizeof message) {
        struct lane *to = &soak->lanes[up_to(soak, soak->n_lanes) - 1];
        if (to->state == LANE_RUNS && user_id(soak, to->user) == user_id(soak, lane->user))
            soak->tokens += send(to->worker.fd, &message, sizeof message, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
    }
}

static void run_lanes(struct soak *soak, bool replace) {
    for (unsigned i = 0; i < soak->n_lanes; i++) {
        struct lane *lane = &soak->lanes[i];
        lane_reap(soak, lane);
        if (lane->state == LANE_EMPTY && replace)
            lane_start(soak, lane);
        if (lane->state == LANE_EMPTY)
            continue;
        lane_hand_on(soak, lane);
        lane_act(soak, lane);
    }
}

/* --- beside them --- */

static void ask_something(struct soak *soak) {
    static const char *const requests[] = {
        "{\"command\":\"ping\"}",       "{\"command\":\"pools\"}",
        "{\"command\":\"sessions\"}",   "{\"command\":\"quota\"}",
        "{\"command\":\"quarantine\"}", "{\"command\":\"trim\"}",
        "{\"command\":\"nonsense\"}",   "[",
    };
    uint64_t which = up_to(soak, 16);

    soak->question_ns = clock_now_ns() + QUESTION_NS;
    soak->questions++;
    if (which <= sizeof requests / sizeof *requests) {
        cJSON_Delete(daemon_ask(&soak->daemon, requests[which - 1]));
    } else if (which == 9) { /* a new connection, next time */
        soak->daemon.admin_fd = close_fd(soak->daemon.admin_fd);
    } else if (which == 10 && soak->questions % 4 == 0) {
        daemon_write_config(&soak->daemon, config_text(soak, (unsigned)up_to(soak, 2) - 1));
        daemon_signal(&soak->daemon, SIGHUP);
    }
}

static unsigned staying(const struct soak *soak, pid_t pids[USERS]) {
    unsigned count = 0;
    for (unsigned i = 0; i < soak->n_lanes; i++)
        if (soak->lanes[i].stays && soak->lanes[i].state == LANE_RUNS)
            pids[count++] = soak->lanes[i].worker.pid;
    return count;
}

static void take_sample(struct soak *soak, uint64_t *report_ns) {
    pid_t pids[USERS];
    unsigned count = staying(soak, pids);

    samples_take(&soak->samples, &soak->daemon, soak->start_ns, pids, count);
    if (clock_now_ns() < *report_ns)
        return;
    samples_print(&soak->samples.at[soak->samples.count - 1]);
    *report_ns += soak->seconds * NS_PER_S / REPORTS;
}

static void run_load(struct soak *soak) {
    uint64_t end_ns = soak->start_ns + soak->seconds * NS_PER_S;
    uint64_t interval_ns = soak->seconds * NS_PER_S / SAMPLES, sample_ns = soak->start_ns + interval_ns;
    uint64_t report_ns = sample_ns;

    take_sample(soak, &report_ns);
    while (clock_now_ns() < end_ns ||
           soak->samples.at[soak->samples.count - 1].acquires < soak->least_acquires) {
        run_lanes(soak, true);
        if (clock_now_ns() >= soak->question_ns)
            ask_something(soak);
        if (clock_now_ns() >= sample_ns) {
            take_sample(soak, &report_ns);
            sample_ns = clock_now_ns() + interval_ns;
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)TICK_NS}, NULL);
    }
}

/* All end, half of them with a farewell. */
static void end_all(struct soak *soak) {
    bool left = true;

    for (unsigned i = 0; i < soak->n_lanes; i++) {
        struct lane *lane = &soak->lanes[i];
        if (lane->state == LANE_STOPPED)
            lane->way = WAY_STOP_AND_KILL;
        else if (lane->state == LANE_RUNS)
            lane->way = lane->stays || i % 2 == 0 ? WAY_FAREWELL : WAY_KILL;
        if (lane->state == LANE_STOPPED || lane->state == LANE_RUNS)
            lane->next_ns = 0;
    }
    while (left) {
        run_lanes(soak, false);
        left = false;
        for (unsigned i = 0; i < soak->n_lanes; i++)
            left |= soak->lanes[i].state != LANE_EMPTY;
        test_pause();
    }
}

/* --- the whole --- */

/* Whether another user can run the daemon at all: it may lie where only root can go. */
static bool can_run_daemon(uid_t uid) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0)
            _exit(1);
        execl(test_daemon_path(), test_daemon_path(), "--version", (char *)NULL);
        _exit(1);
    }
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void print_quarantine(struct soak *soak) {
    cJSON *reply = daemon_ask(&soak->daemon, "{\"command\":\"quarantine\"}");
    char *text = cJSON_Print(reply);
    print_message("%s\n", text);
    free(text);
    cJSON_Delete(reply);
}

static bool is_empty(struct soak *soak) {
    return daemon_sessions(&soak->daemon, "active") == 0 &&
           daemon_sessions(&soak->daemon, "quarantined") == 0;
}

static void nothing_is_left(struct soak *soak, unsigned descriptors, unsigned threads) {
    uint64_t end_ns = clock_now_ns() + TEST_WAIT_NS;

    while (!is_empty(soak) && clock_now_ns() < end_ns)
        test_pause();
    if (!is_empty(soak)) {
        print_quarantine(soak);
        fail_msg("sessions of workers that have gone are left");
    }
    assert_int_equal(daemon_sum(&soak->daemon, "leased_bytes"), 0);
    assert_int_equal(daemon_sum(&soak->daemon, "fenced_bytes"), 0);
    assert_int_equal(daemon_sum(&soak->daemon, "quarantined_bytes"), 0);
    assert_int_equal(daemon_sum(&soak->daemon, "leases"), 0);
    assert_int_equal(daemon_sum(&soak->daemon, "waiters"), 0);
    /* Every byte: what the pools have is free, and goes back to the driver. */
    WAIT_UNTIL((cJSON_Delete(daemon_ask(&soak->daemon, "{\"command\":\"trim\"}")),
                daemon_sum(&soak->daemon, "reserved_bytes") == 0));
    assert_int_equal(daemon_sum(&soak->daemon, "segments"), 0);
    WAIT_UNTIL(daemon_threads(&soak->daemon) == threads);
    uint64_t patience_ns = clock_now_ns() + 5 * NS_PER_S;
    while (daemon_descriptors(&soak->daemon) != descriptors && clock_now_ns() < patience_ns)
        test_pause();
    soak->grew = daemon_descriptors(&soak->daemon) != descriptors;
    if (soak->grew)
        fail_msg("the daemon has %u descriptors, and began with %u", daemon_descriptors(&soak->daemon),
                 descriptors);
}

/* A first worker, so that what is made once and kept is there. */
static void warm_up(struct soak *soak) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    struct puppet first;

    puppet_connect_as(&first, &soak->daemon, NULL, soak->is_root ? user_id(soak, 0) : 0);
    for (unsigned i = 0; i < count; i++)
        PUPPET_MUST(&first, puppet_acquire(&first, i, kinds[i], MIB, GPUPOOL_FOREVER, 0));
    puppet_quit(&first);
    WAIT_UNTIL(is_empty(soak));
    WAIT_UNTIL((cJSON_Delete(daemon_ask(&soak->daemon, "{\"command\":\"trim\"}")),
                daemon_sum(&soak->daemon, "reserved_bytes") == 0));
}

static struct soak soak_;

static void mixed_load_leaves_the_daemon_as_it_was(void **state) {
    /* Freed memory that a sanitizer keeps is to stay small. */
    static const char *const environment[] = {"ASAN_OPTIONS=quarantine_size_mb=1:detect_leaks=1", NULL};
    struct soak *soak = &soak_;
    (void)state;

    soak->is_root = geteuid() == 0;
    soak->service = FIRST_USER + (uid_t)getpid() * (USERS + 1) % (LAST_USER - FIRST_USER);
    bool has_service = soak->is_root && can_run_daemon(soak->service);
    print_message("seed %llu: %llu s, %u workers of %s, the daemon under %s\n",
                  (unsigned long long)soak->random, (unsigned long long)soak->seconds, soak->n_lanes,
                  soak->is_root ? "three users" : "one user",
                  has_service ? "a user of its own" : "the same user");
    daemon_start(&soak->daemon, &(struct daemon_options){.config = config_text(soak, 0),
                                                         .environment = environment,
                                                         .for_all_users = true,
                                                         .uid = has_service ? soak->service : 0});
    alarm((unsigned)soak->seconds + TEST_LIMIT_S);
    warm_up(soak);
    daemon_signal(&soak->daemon, SIGHUP); /* its thread begins with the first reload */
    WAIT_UNTIL(daemon_logged(&soak->daemon, "configuration read again"));
    unsigned descriptors = daemon_descriptors_at_rest(&soak->daemon), threads = daemon_threads(&soak->daemon);
    for (unsigned i = 0; i < soak->n_lanes; i++)
        soak->lanes[i] = (struct lane){.user = i % USERS, .stays = i < USERS};
    soak->start_ns = clock_now_ns();
    run_load(soak);
    end_all(soak);
    daemon_sum(&soak->daemon, "leases");
    nothing_is_left(soak, descriptors, threads);
    for (unsigned way = 0; way < WAYS; way++)
        print_message("%6llu workers %s\n", (unsigned long long)soak->ends[way], ways[way].name);
    print_message("%6llu buffers offered to others; %llu acquires that reached the daemon, %llu questions\n",
                  (unsigned long long)soak->tokens, (unsigned long long)daemon_sum(&soak->daemon, "acquires"),
                  (unsigned long long)soak->questions);
    daemon_stop(&soak->daemon);
    soak->grew = samples_judge(&soak->samples) > 0;
    if (soak->grew)
        fail_msg("something grows: see above");
}

static int usage(void) {
    fputs("usage: soak [--minutes N | --seconds N] [--acquires N] [--workers N] [--seed N] [--csv FILE]\n",
          stderr);
    return 2;
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"soak", soak_worker}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {cmocka_unit_test(mixed_load_leaves_the_daemon_as_it_was)};
    const char *csv = NULL;
    int status = puppet_main(argc, argv, roles);

    if (status >= 0)
        return status;
    soak_ = (struct soak){.n_lanes = WORKERS, .random = DEFAULT_SEED, .seconds = MINUTES * 60};
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        unsigned long number = strtoul(value, NULL, 10);
        if (strcmp(name, "--csv") == 0 && *value != '\0')
            csv = value;
        else if (strcmp(name, "--minutes") == 0 && number > 0)
            soak_.seconds = number * 60;
        else if (strcmp(name, "--seconds") == 0 && number > 0)
            soak_.seconds = number;
        else if (strcmp(name, "--acquires") == 0)
            soak_.least_acquires = number;
        else if (strcmp(name, "--workers") == 0 && number >= USERS && number <= WORKERS_MAX)
            soak_.n_lanes = (unsigned)number;
        else if (strcmp(name, "--seed") == 0 && number > 0)
            soak_.random = number;
        else
            return usage();
    }
    status = test_finish(cmocka_run_group_tests(tests, NULL, NULL));
    if (csv != NULL) {
        int r = samples_write(&soak_.samples, csv);
        if (r < 0)
            fprintf(stderr, "soak: %s: %s\n", csv, strerror(-r));
        status = r < 0 ? 1 : status;
    }
    samples_deinit(&soak_.samples);
    return soak_.grew ? EXIT_GREW : status;
}
