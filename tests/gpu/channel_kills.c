/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills of either side of a channel, at random moments. A producer sends numbered elements to three consumers. A process
 * that was killed has a successor at once. Frames of device memory are written and read in stream order, so that a
 * process often dies with work on the GPU.
 *
 *     channel_kills [--gpu cuda|sim] [--of host|device] [--elements N] [--kills N] [--seconds N] [--seed N]
 *
 * Each consumer's place has to receive each element once, in order and with its contents, but for those that a dead
 * consumer had received and not released: these come again. Where the producer died before its GPU work on a frame was
 * done, the consumers are told of that (LOST), for a frame in each slot and kill at most. In the end no memory is leased
 * or in quarantine. --seconds: a run that takes longer hangs.
 *
 * Exit status 0: all of that; 3: elements were wrong, lost or received out of order; 4: it hung; 5: memory was left;
 * 1: anything else; 77: no GPU. The daemon is $GPUPOOL_DAEMON; $GPUPOOL_TEST_EXPORT is the kind of its device memory.
 */
#include "tests/gpu/channel_kills.h"

#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpupool/names.h>

#include "base/clock.h"
#include "tests/device_export.h"
#include "tests/random.h"

#define PARTS     (1 + CHANNEL_KILLS_CONSUMERS)
#define NAME      "channel-kills"
#define PAUSE_NS  200000L
#define RETURN_NS (30 * NS_PER_S) /* until all memory is back */
#define HUNG      4
#define LEFT      5
#define SKIPPED   77
#define POOLS_MAX 64u

struct plan {
    const char *gpu;
    bool is_of_device;
    uint64_t elements, kills, seconds, seed;
};

struct run {
    const struct plan *plan;
    struct gpupool_client *client;
    int notes_fd;
    struct channel_notes *notes;
    pid_t pids[PARTS]; /* 0: the part has done its work */
    uint64_t random, n_kills, kills_of_producer, deadline_ns;
};

static _Noreturn void fail(const char *what) {
    fprintf(stderr, "channel_kills: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

static size_t notes_bytes(uint64_t elements) {
    return sizeof(struct channel_notes) + CHANNEL_KILLS_CONSUMERS * (elements + 1);
}

static struct channel_notes *map_notes(int fd, uint64_t elements) {
    void *memory = mmap(NULL, notes_bytes(elements), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (memory == MAP_FAILED) {
        perror("channel_kills: notes");
        exit(1);
    }
    return memory;
}

/* Starts this program as a part. */
static void start(struct run *run, unsigned part) {
    char place[16], fd[16], elements[24];

    snprintf(place, sizeof place, "%u", part);
    snprintf(fd, sizeof fd, "%d", run->notes_fd);
    snprintf(elements, sizeof elements, "%" PRIu64, run->plan->elements);
    pid_t pid = fork();
    if (pid < 0) {
        perror("channel_kills: fork");
        exit(1);
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", "channel_kills", "--part", place, "--notes", fd, "--socket",
              gpupool_socket_path(run->client), "--elements", elements, "--of",
              run->plan->is_of_device ? "device" : "host", (char *)NULL);
        _exit(127);
    }
    run->pids[part] = pid;
}

static void begin(struct run *run) {
    char config[] = "/tmp/gpupool-channel-kills-XXXXXX";
    const char *arguments[] = {"--config", config, "--gpu", run->plan->gpu, NULL};
    struct gpupool_channel_options channel = GPUPOOL_CHANNEL_OPTIONS_INIT;
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    if (!device_export_write_config(config, ""))
        exit(1);
    options.socket = "private";
    options.daemon_arguments = arguments;
    int r = gpupool_open(&options, &run->client);
    unlink(config);
    if (r < 0)
        fail("open");
    r = run->plan->is_of_device ? gpupool_device_pool(run->client, 0, &channel.pool)
                                : gpupool_host_pool(run->client, -1, &channel.pool);
    if (r == GPUPOOL_E_NO_GPU)
        exit(SKIPPED);
    channel.slot_bytes = 4096;
    channel.slots = CHANNEL_KILLS_SLOTS;
    channel.consumers = CHANNEL_KILLS_CONSUMERS;
    channel.metadata_bytes = 8;
    channel.flags = GPUPOOL_CHANNEL_KEEP;
    if (r < 0 || gpupool_channel_make(run->client, NAME, &channel) < 0)
        fail("the channel");
    run->notes_fd = memfd_create("channel-kills", 0); /* parts inherit it */
    if (run->notes_fd < 0 || ftruncate(run->notes_fd, (off_t)notes_bytes(run->plan->elements)) < 0)
        fail("notes");
    run->notes = map_notes(run->notes_fd, run->plan->elements);
    for (unsigned part = 0; part < PARTS; part++)
        start(run, part);
}

/* Kills a part that is at work. */
static void kill_one(struct run *run) {
    unsigned part = (unsigned)(random_next(&run->random) % PARTS);

    if (run->pids[part] == 0)
        return;
    kill(run->pids[part], SIGKILL);
    run->n_kills++;
    run->kills_of_producer += part == 0;
}

/* Parts that were killed have successors. Returns an exit status that is not 0 where one failed. */
static int reap(struct run *run) {
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (unsigned part = 0; part < PARTS; part++) {
            if (run->pids[part] != pid)
                continue;
            run->pids[part] = 0;
            if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
                start(run, part);
            else if (status != 0)
                return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        }
    return 0;
}

static bool is_running(const struct run *run) {
    for (unsigned part = 0; part < PARTS; part++)
        if (run->pids[part] != 0)
            return true;
    return false;
}

static void end_parts(const struct run *run) {
    for (unsigned part = 0; part < PARTS; part++)
        if (run->pids[part] != 0)
            kill(run->pids[part], SIGKILL);
}

static int play(struct run *run) {
    struct timespec pause = {.tv_nsec = PAUSE_NS};
    uint64_t distance = run->plan->elements / (run->plan->kills + 1) + 1, due = distance;

    while (is_running(run)) {
        int status = reap(run);
        if (status != 0)
            return status;
        if (clock_now_ns() > run->deadline_ns) {
            fprintf(stderr, "channel_kills: it hangs, with %" PRIu64 " elements sent\n",
                    atomic_load(&run->notes->sent));
            return HUNG;
        }
        if (run->n_kills < run->plan->kills && atomic_load(&run->notes->sent) >= due) {
            kill_one(run);
            due += distance / 2 + random_next(&run->random) % distance;
        }
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Whether each place has had each element. */
static int check_places(const struct run *run) {
    uint64_t lost_max = run->kills_of_producer * CHANNEL_KILLS_SLOTS;

    for (unsigned i = 0; i < CHANNEL_KILLS_CONSUMERS; i++) {
        const struct consumer_notes *notes = &run->notes->consumers[i];
        const _Atomic uint8_t *elements = &run->notes->elements[i * (run->plan->elements + 1)];
        uint64_t n_missing = 0, n_lost = 0;
        for (uint64_t sequence = 1; sequence <= run->plan->elements; sequence++) {
            n_missing += atomic_load(&elements[sequence]) == NOTE_NONE;
            n_lost += atomic_load(&elements[sequence]) == NOTE_LOST;
        }
        printf("consumer %u: %" PRIu64 " received, %" PRIu64 " of them again, %" PRIu64 " checked, %" PRIu64
               " told lost, %" PRIu64 " missing\n",
               i + 1, atomic_load(&notes->received) + atomic_load(&notes->again), atomic_load(&notes->again),
               atomic_load(&notes->checked), n_lost, n_missing);
        if (n_missing > 0 || n_lost > lost_max)
            return 3;
    }
    return 0;
}

static bool has_memory(struct gpupool_client *client) {
    struct gpupool_pool pools[POOLS_MAX];
    size_t count = 0;

    if (gpupool_pools(client, pools, POOLS_MAX, &count) < 0)
        fail("pools");
    for (size_t i = 0; i < count && i < POOLS_MAX; i++)
        if (pools[i].leased_bytes > 0 || pools[i].quarantined_bytes > 0)
            return true;
    return false;
}

static int check_memory(struct run *run) {
    struct timespec pause = {.tv_nsec = PAUSE_NS};
    uint64_t deadline_ns = clock_now_ns() + RETURN_NS;

    if (gpupool_unpublish(run->client, NAME, 0) < 0 || gpupool_trim(run->client, NULL) < 0)
        fail("the channel's end");
    while (has_memory(run->client)) {
        if (clock_now_ns() > deadline_ns) {
            fprintf(stderr, "channel_kills: memory is left\n");
            return LEFT;
        }
        nanosleep(&pause, NULL);
    }
    return 0;
}

static int run_parts(const struct plan *plan) {
    struct run run = {.plan = plan, .random = random_seed(plan->seed)};
    uint64_t begin_ns = clock_now_ns();

    begin(&run);
    run.deadline_ns = begin_ns + plan->seconds * NS_PER_S;
    int status = play(&run);
    end_parts(&run);
    printf("%" PRIu64 " elements of %s memory, %" PRIu64 " kills, %" PRIu64
           " of them of the producer, %.1f s, seed %" PRIu64 "\n",
           atomic_load(&run.notes->sent), plan->is_of_device ? "device" : "host", run.n_kills,
           run.kills_of_producer, (double)(clock_now_ns() - begin_ns) / 1e9, plan->seed);
    if (status == 0)
        status = check_places(&run);
    if (status == 0)
        status = check_memory(&run);
    gpupool_close(run.client);
    return status;
}

static bool read_number(const char *text, uint64_t least, uint64_t *ret_number) {
    char *end;

    *ret_number = strtoull(text, &end, 10);
    return *end == '\0' && *text != '\0' && *ret_number >= least;
}

int main(int argc, char **argv) {
    static const struct option known[] = {{"gpu", 1, NULL, 'g'},      {"of", 1, NULL, 'o'},
                                          {"elements", 1, NULL, 'e'}, {"kills", 1, NULL, 'k'},
                                          {"seed", 1, NULL, 's'},     {"seconds", 1, NULL, 't'},
                                          {"part", 1, NULL, 'p'},     {"notes", 1, NULL, 'n'},
                                          {"socket", 1, NULL, 'S'},   {0}};
    struct plan plan = {.gpu = "cuda", .elements = 1000000, .kills = 100, .seconds = 600, .seed = 1};
    struct channel_part part = {.name = NAME};
    uint64_t place = PARTS, notes = 0;
    bool is_good = true;
    int option;

    while (is_good && (option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        switch (option) {
        case 'g':
            plan.gpu = optarg;
            break;
        case 'S':
            part.socket = optarg;
            break;
        case 'o':
            plan.is_of_device = strcmp(optarg, "device") == 0;
            is_good = plan.is_of_device || strcmp(optarg, "host") == 0;
            break;
        case 'e':
            is_good = read_number(optarg, 1, &plan.elements);
            break;
        case 'k':
            is_good = read_number(optarg, 0, &plan.kills);
            break;
        case 's':
            is_good = read_number(optarg, 0, &plan.seed);
            break;
        case 't':
            is_good = read_number(optarg, 1, &plan.seconds);
            break;
        case 'p':
            is_good = read_number(optarg, 0, &place) && place < PARTS;
            break;
        case 'n':
            is_good = read_number(optarg, 0, &notes);
            break;
        default:
            is_good = false;
        }
    }
    if (!is_good || optind < argc) {
        fprintf(stderr, "usage: channel_kills [--gpu cuda|sim] [--of host|device] [--elements N] [--kills N] "
                        "[--seconds N] [--seed N]\n");
        return 2;
    }
    if (place == PARTS)
        return run_parts(&plan);
    part.is_of_device = plan.is_of_device;
    part.elements = plan.elements;
    part.notes = map_notes((int)notes, plan.elements);
    return place == 0 ? channel_kills_produce(&part) : channel_kills_consume(&part, (unsigned)place);
}
