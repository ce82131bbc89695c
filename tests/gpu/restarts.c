/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restarts: a daemon with a keeper is killed again and again under a mixed load, and nothing is lost, nothing is lent
 * twice, and no call fails.
 *
 * Workers take buffers of device and host pools, with and without a cache, write them, look whether they stay as they
 * were written, share them, send them, and give them back. Victims (kills_parts.c) are killed meanwhile, some with a
 * kernel in flight, and others come. (On the simulation their work ends with them: what it could show there is the
 * first word of a segment, of which others have parts here.) The pools are smaller than what the workers would like to have: requests wait.
 *
 *     restarts [--gpu cuda|sim] [--restarts N] [--workers N] [--limit MIB] [--hold GIB] [--seconds N] [--seed N]
 *
 * --limit: of each pool; a large one makes no request wait. --hold: a process has so much device memory throughout,
 * beside the limit. --seconds: what takes longer has failed. Exit status 0:
 * no foreign write, no call that failed, nothing lost. The daemon is $GPUPOOL_DAEMON. Device pools have export = vmm.
 */
#include "tests/gpu/kills.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#define WORKERS_MAX 16u
#define VICTIMS     3u
#define HELD_MAX    6u
#define BYTES_MAX   (6 * KILLS_MIB)
#define FOREIGN     3
/* A request that waits longer for room comes back, and its worker gives something back. Longer than no daemon is
 * there. */
#define WAIT_NS (4 * KILLS_NS_PER_S)

struct plan {
    const char *gpu;
    unsigned restarts, workers, limit_mib, hold_gib, seconds;
    uint64_t seed;
};

/* --- a worker --- */

static volatile sig_atomic_t told_to_stop;

static void on_stop(int number) {
    (void)number;
    told_to_stop = 1;
}

struct worker {
    struct gpupool_client *clients[2];
    uint32_t pools[2];
    struct held {
        struct gpupool_buffer buffer;
        struct gpupool_client *client;
        uint8_t byte;
    } held[HELD_MAX];
    unsigned n_held;
    uint8_t *found;
    uint64_t random, longest_ns, begin_ns;
    unsigned long long calls, checked, late;
    const char *longest;
};

static void begin(struct worker *worker) {
    worker->begin_ns = kills_now_ns();
}

/* A call is over. EXHAUSTED: it waited for room. TIMED_OUT: likewise, and no daemon was there when its time was up. */
static int over(struct worker *worker, int result, const char *what) {
    uint64_t ns = kills_now_ns() - worker->begin_ns;

    worker->calls++;
    if (result == 0 && ns > worker->longest_ns) {
        worker->longest_ns = ns;
        worker->longest = what;
    }
    if (result != 0 && result != GPUPOOL_E_EXHAUSTED && !(result == GPUPOOL_E_TIMED_OUT && ns >= WAIT_NS))
        kills_need(result, what);
    worker->late += result == GPUPOOL_E_TIMED_OUT;
    return result;
}

static void check(struct worker *worker, const struct held *held) {
    const uint8_t *bytes = held->buffer.data;
    uint64_t size = held->buffer.size_bytes;

    if (held->buffer.kind == GPUPOOL_POOL_DEVICE) {
        kills_need(
            gpupool_copy(held->client, held->buffer.device, worker->found, held->buffer.data, size, NULL),
            "a copy");
        kills_need(gpupool_stream_synchronize(held->client, held->buffer.device, NULL), "a wait for a copy");
        bytes = worker->found;
    }
    for (uint64_t i = 0; i < size; i++)
        if (bytes[i] != held->byte) {
            fprintf(stderr, "restarts: foreign write: byte %llu of %llu is %u and not %u\n",
                    (unsigned long long)i, (unsigned long long)size, bytes[i], held->byte);
            _exit(FOREIGN);
        }
    worker->checked++;
}

static void fill(struct worker *worker, struct held *held) {
    held->byte = (uint8_t)(kills_next_random(&worker->random) | 1);
    if (held->buffer.kind != GPUPOOL_POOL_DEVICE) {
        memset(held->buffer.data, held->byte, held->buffer.size_bytes);
        return;
    }
    kills_need(gpupool_set(held->client, held->buffer.device, held->buffer.data, held->byte,
                           held->buffer.size_bytes, NULL),
               "a fill");
    kills_need(gpupool_stream_synchronize(held->client, held->buffer.device, NULL), "a wait for a fill");
}

static void give_back(struct worker *worker, unsigned i) {
    struct held *held = &worker->held[i];

    check(worker, held);
    begin(worker);
    over(worker,
         gpupool_release(held->client, &held->buffer,
                         held->buffer.kind == GPUPOOL_POOL_DEVICE ? NULL : GPUPOOL_NO_STREAM),
         "a release");
    *held = worker->held[--worker->n_held];
}

static void take(struct worker *worker) {
    uint64_t random = kills_next_random(&worker->random);
    struct held *held = &worker->held[worker->n_held];
    uint64_t size = random % 5 == 0 ? random / 8 % BYTES_MAX + 1 : random / 8 % (64 << 10) + 1;

    held->client = worker->clients[random / 2 % 2];
    begin(worker);
    if (over(worker,
             gpupool_acquire(held->client, worker->pools[random % 2], size, NULL, WAIT_NS, 0, &held->buffer),
             "an acquire") != 0) {
        if (worker->n_held > 0)
            give_back(worker, (unsigned)(random / 16 % worker->n_held));
        return;
    }
    fill(worker, held);
    worker->n_held++;
}

/* The other client of the process takes what one shares or sends. */
static void pass_on(struct worker *worker, bool sends) {
    struct held *held = &worker->held[kills_next_random(&worker->random) % worker->n_held];
    struct held *other = &worker->held[worker->n_held];
    struct gpupool_token token;

    other->client = worker->clients[held->client == worker->clients[0]];
    other->byte = held->byte;
    begin(worker);
    over(worker,
         sends ? gpupool_send(held->client, &held->buffer, NULL, 1, 60 * KILLS_NS_PER_S, &token)
               : gpupool_share(held->client, &held->buffer, NULL, &token),
         "a share");
    begin(worker);
    int r = gpupool_attach(other->client, &token, NULL, 0, &other->buffer);
    over(worker, r, "an attach");
    if (r == 0)
        check(worker, other);
    worker->n_held += r == 0;
}

static int be_worker(uint64_t seed) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct worker worker = {.random = seed, .found = malloc(BYTES_MAX + 1), .longest = "nothing"};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, on_stop);
    for (unsigned i = 0; i < 2; i++) {
        options.flags = i == seed % 2 ? GPUPOOL_OPEN_NO_CACHE : 0;
        kills_need(gpupool_open(&options, &worker.clients[i]), "a worker connects");
    }
    kills_need(gpupool_device_pool(worker.clients[0], 0, &worker.pools[0]), "the device pool");
    kills_need(gpupool_host_pool(worker.clients[0], -1, &worker.pools[1]), "the host pool");
    while (!told_to_stop) {
        uint64_t random = kills_next_random(&worker.random) % 16;
        if (worker.n_held == 0 || (random < 8 && worker.n_held < HELD_MAX - 1))
            take(&worker);
        else if (random < 10 && worker.n_held < HELD_MAX)
            pass_on(&worker, random == 8);
        else
            give_back(&worker, (unsigned)(random % worker.n_held));
        if (random == 15)
            kills_rest_ns(KILLS_NS_PER_MS);
    }
    while (worker.n_held > 0)
        give_back(&worker, 0);
    for (unsigned i = 0; i < 2; i++)
        gpupool_close(worker.clients[i]);
    free(worker.found);
    printf("%llu %llu %llu %llu %s\n", worker.calls, worker.checked, worker.late,
           (unsigned long long)worker.longest_ns, worker.longest);
    return fflush(stdout) == 0 ? 0 : 1;
}

/* --- a process that keeps much --- */

#define HOLD_BYTES (512 * KILLS_MIB)
#define HOLDS_MAX  256u

/* Says so when it has it all; looks at its end whether it still is as it was written. */
static int be_holder(uint64_t gib) {
    static struct gpupool_buffer buffers[HOLDS_MAX];
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    uint8_t *found = malloc(HOLD_BYTES);
    struct gpupool_client *client;
    unsigned n = (unsigned)(gib * 1024 * KILLS_MIB / HOLD_BYTES);
    uint32_t pool;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, on_stop);
    if (n > HOLDS_MAX || found == NULL)
        return 1;
    kills_need(gpupool_open(&options, &client), "a holder connects");
    kills_need(gpupool_device_pool(client, 0, &pool), "the device pool");
    for (unsigned i = 0; i < n; i++) {
        kills_need(gpupool_acquire(client, pool, HOLD_BYTES, NULL, KILLS_PATIENCE_NS, 0, &buffers[i]),
                   "a hold");
        kills_need(gpupool_set(client, buffers[i].device, buffers[i].data, (int)i + 1, HOLD_BYTES, NULL),
                   "a fill");
    }
    kills_need(gpupool_stream_synchronize(client, buffers[0].device, NULL), "a wait for fills");
    if (write(STDOUT_FILENO, "r", 1) != 1)
        return 1;
    while (!told_to_stop)
        pause();
    for (unsigned i = 0; i < n; i++) {
        kills_need(gpupool_copy(client, buffers[i].device, found, buffers[i].data, HOLD_BYTES, NULL),
                   "a copy");
        kills_need(gpupool_stream_synchronize(client, buffers[i].device, NULL), "a wait for a copy");
        for (uint64_t k = 0; k < HOLD_BYTES; k++)
            if (found[k] != i + 1)
                return FOREIGN;
        kills_need(gpupool_release(client, &buffers[i], NULL), "a release");
    }
    gpupool_close(client);
    return 0;
}

/* --- the driver --- */

struct process {
    pid_t pid;
    int output;
    uint64_t end_ns; /* of a victim */
};

static struct process start(const char *part, uint64_t seed) {
    struct process process = {0};
    char text[24];
    int ends[2];

    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    if (pipe2(ends, O_CLOEXEC) < 0 || (process.pid = fork()) < 0) {
        perror("restarts");
        exit(1);
    }
    if (process.pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "restarts", "--part", part, text, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    process.output = ends[0];
    return process;
}

/* The daemon: the keeper's child. 0: there is none now. */
static pid_t find_daemon(pid_t keeper) {
    char path[64];
    int pid = 0;

    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)keeper, (int)keeper);
    FILE *file = fopen(path, "re");
    if (file != NULL && fscanf(file, "%d", &pid) != 1)
        pid = 0;
    if (file != NULL)
        fclose(file);
    return pid;
}

/* The sockets that the keeper has. */
static unsigned count_sockets(pid_t keeper) {
    char folder[64], path[320], target[64];
    unsigned n = 0;

    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)keeper);
    DIR *directory = opendir(folder);
    for (const struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        n += strncmp(target, "socket:", 7) == 0;
    }
    if (directory != NULL)
        closedir(directory);
    return n;
}

struct drive {
    const struct plan *plan;
    char folder[64], path[128];
    pid_t keeper;
    struct process workers[WORKERS_MAX], victims[VICTIMS], holder;
    uint64_t away_ns[4096]; /* from a kill to the next daemon that serves */
    unsigned n_away;
    unsigned restarts, killed;
    uint64_t random, start_ns;
};

static void fail(const struct drive *drive, const char *what) {
    char command[256];

    fprintf(stderr, "restarts: %s, after %u restarts and %.1f s; the daemon's last words:\n", what,
            drive->restarts, (double)(kills_now_ns() - drive->start_ns) / 1e9);
    snprintf(command, sizeof command, "tail -n 20 %s/log >&2", drive->folder);
    (void)!system(command);
    exit(1);
}

static const char *in(struct drive *drive, const char *name) {
    snprintf(drive->path, sizeof drive->path, "%s/%s", drive->folder, name);
    return drive->path;
}

static void start_keeper(struct drive *drive) {
    char socket[128], admin[128], config[128];

    snprintf(socket, sizeof socket, "%s/d.sock", drive->folder);
    snprintf(admin, sizeof admin, "%s/a.sock", drive->folder);
    snprintf(config, sizeof config, "%s/conf", drive->folder);
    FILE *file = fopen(config, "we");
    if (file == NULL ||
        fprintf(file,
                "[device]\nlimit = %uMiB\nstep = 2MiB\nlow_water = 0\nexport = vmm\n"
                "[host]\nlimit = %uMiB\nstep = 2MiB\nlow_water = 0\nhuge_pages = off\n",
                drive->plan->limit_mib + 1024 * drive->plan->hold_gib, drive->plan->limit_mib) < 0 ||
        fclose(file) != 0)
        fail(drive, "the configuration cannot be written");
    setenv("GPUPOOL_SOCKET", socket, 1);
    setenv("XDG_RUNTIME_DIR", drive->folder, 1);
    int log = open(in(drive, "log"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int ready[2];
    char number[16], byte;
    if (log < 0 || pipe(ready) < 0 || (drive->keeper = fork()) < 0)
        fail(drive, "the keeper cannot be started");
    if (drive->keeper == 0) {
        const char *daemon = getenv("GPUPOOL_DAEMON");
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        snprintf(number, sizeof number, "%d", ready[1]);
        close(ready[0]);
        execl(daemon, daemon, "--keeper", "--config", config, "--gpu", drive->plan->gpu, "--socket", socket,
              "--admin-socket", admin, "--ready-fd", number, (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    close(log);
    if (read(ready[0], &byte, 1) != 1)
        fail(drive, "the daemon does not become ready");
    close(ready[0]);
}

static void look_after(struct drive *drive) {
    uint64_t now_ns = kills_now_ns();
    char text[96];
    int status;

    for (unsigned i = 0; i < drive->plan->workers; i++)
        if (waitpid(drive->workers[i].pid, &status, WNOHANG) != 0) {
            if (WIFEXITED(status) && WEXITSTATUS(status) == FOREIGN)
                exit(FOREIGN);
            snprintf(text, sizeof text, "worker %d ended with status 0x%x", (int)drive->workers[i].pid,
                     (unsigned)status);
            fail(drive, text);
        }
    for (unsigned i = 0; i < VICTIMS; i++) {
        struct process *victim = &drive->victims[i];
        if (victim->pid != 0 && now_ns >= victim->end_ns) {
            kill(victim->pid, SIGKILL);
            waitpid(victim->pid, &status, 0);
            close(victim->output);
            victim->pid = 0;
            drive->killed++;
        }
        if (victim->pid == 0) {
            uint64_t random = kills_next_random(&drive->random);
            *victim = start(random % 3 == 0 ? "victim" : "random", random);
            victim->end_ns = now_ns + random / 8 % (400 * KILLS_NS_PER_MS);
        }
    }
    if (waitpid(drive->keeper, &status, WNOHANG) != 0)
        fail(drive, "the keeper ended");
    if (now_ns - drive->start_ns > drive->plan->seconds * KILLS_NS_PER_S)
        fail(drive, "it takes too long");
}

static void rest(struct drive *drive, uint64_t ns) {
    uint64_t end_ns = kills_now_ns() + ns;

    do {
        look_after(drive);
        kills_rest_ns(KILLS_NS_PER_MS);
    } while (kills_now_ns() < end_ns);
}

/* How many daemons have become ready so far. */
static unsigned count_ready(struct drive *drive) {
    char line[1024];
    unsigned n = 0;
    FILE *log = fopen(in(drive, "log"), "re");

    while (log != NULL && fgets(line, sizeof line, log) != NULL)
        n += strstr(line, ": serving ") != NULL;
    if (log != NULL)
        fclose(log);
    return n;
}

static void kill_daemon(struct drive *drive) {
    pid_t pid;

    while ((pid = find_daemon(drive->keeper)) == 0)
        rest(drive, 0);
    kill(pid, SIGKILL);
    while (find_daemon(drive->keeper) == pid)
        rest(drive, 0);
    drive->restarts++;
}

/* Returns the bytes that no process has any more, and that nothing can have again. */
static uint64_t wait_for_rest(void) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    uint64_t end_ns = kills_now_ns() + KILLS_PATIENCE_NS, left;
    struct gpupool_client *client;

    options.flags = GPUPOOL_OPEN_NO_CUDA | GPUPOOL_OPEN_NO_CACHE;
    kills_need(gpupool_open(&options, &client), "asking for the pools");
    do {
        struct gpupool_pool pools[32];
        size_t count;
        kills_need(gpupool_pools(client, pools, 32, &count), "asking for the pools");
        left = 0;
        for (size_t i = 0; i < count && i < 32; i++)
            left += pools[i].reserved_bytes - pools[i].free_bytes;
        kills_rest_ns(5 * KILLS_NS_PER_MS);
    } while (left > 0 && kills_now_ns() < end_ns);
    gpupool_close(client);
    return left;
}

static bool log_says(struct drive *drive, const char *word) {
    char command[256];

    snprintf(command, sizeof command, "grep -q '%s' %s/log", word, drive->folder);
    return system(command) == 0;
}

static int compare_times(const void *a, const void *b) {
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static int run(const struct plan *plan) {
    struct drive drive = {.plan = plan, .folder = "/tmp/gpupool-restarts-XXXXXX", .random = plan->seed};
    unsigned long long calls = 0, checked = 0, late = 0;
    uint64_t longest_ns = 0;
    char longest[64] = "";
    int status;

    if (mkdtemp(drive.folder) == NULL)
        return 1;
    drive.start_ns = kills_now_ns();
    start_keeper(&drive);
    unsigned sockets = count_sockets(drive.keeper);
    if (plan->hold_gib > 0) {
        char byte;
        drive.holder = start("holder", plan->hold_gib);
        if (read(drive.holder.output, &byte, 1) != 1)
            fail(&drive, "the holder does not get its memory");
    }
    for (unsigned i = 0; i < plan->workers; i++)
        drive.workers[i] = start("worker", plan->seed + i);
    rest(&drive, 500 * KILLS_NS_PER_MS);
    while (drive.restarts < plan->restarts) {
        uint64_t random = kills_next_random(&drive.random);
        unsigned n_ready = count_ready(&drive);
        rest(&drive, random % (150 * KILLS_NS_PER_MS));
        uint64_t killed_ns = kills_now_ns();
        kill_daemon(&drive);
        if (random % 5 == 0) { /* the next one in its first steps, or while it reads */
            rest(&drive, random / 8 % (30 * KILLS_NS_PER_MS));
            kill_daemon(&drive);
        }
        if (random % 16 == 1)
            kill(drive.keeper, SIGUSR2);       /* it executes itself */
        while (count_ready(&drive) == n_ready) /* three deaths before that, and the estate is let go */
            rest(&drive, KILLS_NS_PER_MS);
        if (random % 5 != 0 && drive.n_away < sizeof drive.away_ns / sizeof *drive.away_ns)
            drive.away_ns[drive.n_away++] = kills_now_ns() - killed_ns;
    }
    rest(&drive, 300 * KILLS_NS_PER_MS);
    for (unsigned i = 0; i < VICTIMS; i++)
        if (drive.victims[i].pid != 0) {
            kill(drive.victims[i].pid, SIGKILL);
            waitpid(drive.victims[i].pid, &status, 0);
        }
    for (unsigned i = 0; i < plan->workers; i++)
        kill(drive.workers[i].pid, SIGTERM);
    for (unsigned i = 0; i < plan->workers; i++) {
        unsigned long long its_calls, its_checked, its_late, its_longest_ns;
        char its_longest[64] = "";
        FILE *output = fdopen(drive.workers[i].output, "r");
        if (output == NULL ||
            fscanf(output, "%llu %llu %llu %llu %63[^\n]", &its_calls, &its_checked, &its_late, &its_longest_ns,
                   its_longest) != 5 ||
            waitpid(drive.workers[i].pid, &status, 0) != drive.workers[i].pid || status != 0)
            fail(&drive, "a worker failed at its end");
        fclose(output);
        calls += its_calls;
        checked += its_checked;
        late += its_late;
        if (its_longest_ns > longest_ns) {
            longest_ns = its_longest_ns;
            snprintf(longest, sizeof longest, "%s", its_longest);
        }
    }
    if (plan->hold_gib > 0) {
        kill(drive.holder.pid, SIGTERM);
        if (waitpid(drive.holder.pid, &status, 0) != drive.holder.pid || status != 0)
            fail(&drive, "the holder's memory has changed, or it failed");
    }
    if (drive.n_away > 0)
        qsort(drive.away_ns, drive.n_away, sizeof *drive.away_ns, compare_times);
    uint64_t lost = wait_for_rest();
    unsigned more = 0;
    for (unsigned i = 0; i < 200 && (more = count_sockets(drive.keeper) - sockets) > 0; i++)
        kills_rest_ns(10 * KILLS_NS_PER_MS);
    bool was_let_go = log_says(&drive, "let go");
    kill(drive.keeper, SIGTERM);
    if (waitpid(drive.keeper, &status, 0) != drive.keeper || status != 0)
        fail(&drive, "the keeper does not end well");
    printf("%u restarts and %u killed processes in %.1f s: %llu calls, %llu buffers checked, 0 foreign "
           "writes, 0 "
           "calls failed (%llu came to their own deadline while no daemon was there), %llu bytes lost, %u sockets left in the store; the longest call was %s, %.1f ms\n",
           drive.restarts, drive.killed, (double)(kills_now_ns() - drive.start_ns) / 1e9, calls, checked,
           late, (unsigned long long)lost, more, longest, (double)longest_ns / 1e6);
    if (drive.n_away > 0)
        printf("from SIGKILL to a daemon that serves: %.0f ms (median of %u), at most %.0f ms\n",
               (double)drive.away_ns[drive.n_away / 2] / 1e6, drive.n_away,
               (double)drive.away_ns[drive.n_away - 1] / 1e6);
    if (was_let_go || lost > 0 || more > 0 || checked == 0)
        fail(&drive, was_let_go ? "an estate was let go" : "something is left");
    snprintf(drive.path, sizeof drive.path, "rm -r %s", drive.folder);
    return system(drive.path) == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    struct plan plan = {
        .gpu = "cuda", .restarts = 50, .workers = 4, .limit_mib = 48, .seconds = 300, .seed = 1};

    if (argc == 4 && strcmp(argv[1], "--part") == 0) {
        uint64_t seed = strtoull(argv[3], NULL, 10);
        if (strcmp(argv[2], "holder") == 0)
            return be_holder(seed);
        return strcmp(argv[2], "worker") == 0
                   ? be_worker(seed)
                   : kills_victim(strcmp(argv[2], "victim") == 0 ? "-" : "r", seed);
    }
    for (int i = 1; i + 1 < argc; i += 2) {
        const struct {
            const char *name;
            unsigned *value;
        } numbers[] = {{"--restarts", &plan.restarts},
                       {"--workers", &plan.workers},
                       {"--limit", &plan.limit_mib},
                       {"--hold", &plan.hold_gib},
                       {"--seconds", &plan.seconds}};
        if (strcmp(argv[i], "--gpu") == 0)
            plan.gpu = argv[i + 1];
        if (strcmp(argv[i], "--seed") == 0)
            plan.seed = strtoull(argv[i + 1], NULL, 10);
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            if (strcmp(argv[i], numbers[k].name) == 0)
                *numbers[k].value = (unsigned)strtoul(argv[i + 1], NULL, 10);
    }
    if (getenv("GPUPOOL_DAEMON") == NULL || plan.workers > WORKERS_MAX) {
        fputs("restarts: $GPUPOOL_DAEMON is to be the daemon's program, and there are at most 16 workers\n",
              stderr);
        return 2;
    }
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    return run(&plan);
}
