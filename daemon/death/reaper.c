/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/death/reaper.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/data/client.h"
#include "daemon/daemon.h"
#include "daemon/death/holders.h"
#include "daemon/loop/log.h"

/* A dead process is listed for some 50 ms (H200); a question takes up to a few hundred µs. */
#define INTERVAL_MIN_NS (20 * NS_PER_MS)
/* Who has waited long waits for something that takes long, such as a forked child's end. */
#define INTERVAL_MAX_NS  (1 * NS_PER_S)
#define INTERVAL_DIVISOR 8
/* Who lives and is not in the list may have made its context by then; a context takes a third of a second. */
#define WATCH_MAX_NS (5 * NS_PER_S)
/* The reaper's looks into /proc take a tenth of a processor at most. What others take away from them on a
 * busy machine does not count: who waits would wait ten times as long for it. */
#define LOOK_DIVISOR   10
#define PROCESSES_ROOM 1024u /* to begin with */

/* A round: a question to the list, and a look into /proc where somebody needs that. */
struct reaper_job {
    struct worker_job job;
    struct reaper *reaper;
    uint64_t number;
    int result; /* of the question */
    struct gpu_process *processes;
    size_t n_processes, room;
    struct holders_subject *subjects; /* who need a look */
    size_t n_subjects;
    pid_t *exempt; /* clients that live, and room for those that are listed */
    size_t n_exempt;
    uint64_t look_ns; /* what the look took, of a processor */
};

static void reaper_arm(struct reaper *reaper);

bool reaper_socket_is_over(int socket) {
    struct pollfd event = {.fd = socket, .events = 0};
    return socket < 0 || (poll(&event, 1, 0) > 0 && (event.revents & (POLLHUP | POLLERR)) != 0);
}

/* --- on the worker's thread --- */

static void question_run(struct reaper_job *job) {
    const struct gpu *gpu = job->reaper->daemon->gpu;
    size_t count = 0;

    job->result = GPU_ERROR_NOT_SUPPORTED;
    if (gpu == NULL)
        return;
    worker_enter_call(&job->reaper->worker, "the list of processes");
    for (;;) {
        job->result = gpu->all_processes(job->processes, job->room, &count);
        if (job->result != 0 || count <= job->room)
            break;
        size_t room = 2 * count;
        struct gpu_process *processes = realloc(job->processes, room * sizeof *processes);
        if (processes == NULL) {
            job->result = GPU_ERROR_MEMORY_ALLOCATION; /* asked again later */
            break;
        }
        job->processes = processes;
        job->room = room;
    }
    worker_leave_call(&job->reaper->worker);
    job->n_processes = job->result == 0 ? count : 0;
}

static int compare_pids(const void *a, const void *b) {
    pid_t left = *(const pid_t *)a, right = *(const pid_t *)b;
    return (left > right) - (left < right);
}

static uint64_t thread_time_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

static void look_run(struct reaper_job *job) {
    char device_files[GPU_DEVICE_FILES_SIZE] = "/dev/nvidia";
    const struct gpu *gpu = job->reaper->daemon->gpu;
    uint64_t begin_ns = thread_time_ns();

    if (job->n_subjects == 0)
        return;
    if (gpu != NULL)
        gpu->device_files(device_files);
    pid_t *exempt = realloc(job->exempt, (job->n_exempt + job->n_processes + 1) * sizeof *exempt);
    if (exempt != NULL) { /* else somebody is suspected who need not be */
        job->exempt = exempt;
        for (size_t i = 0; i < job->n_processes; i++)
            exempt[job->n_exempt++] = job->processes[i].pid;
    }
    if (job->n_exempt > 0)
        qsort(job->exempt, job->n_exempt, sizeof *job->exempt, compare_pids);
    holders_look("/proc", device_files, job->exempt, job->n_exempt, job->subjects, job->n_subjects);
    for (size_t i = 0; i < job->n_subjects; i++)
        if (job->subjects[i].holders == HOLDERS_NONE) { /* once more, to be sure: see holders_look() */
            worker_beat(&job->reaper->worker);
            holders_look("/proc", device_files, job->exempt, job->n_exempt, job->subjects, job->n_subjects);
            break;
        }
    job->look_ns = thread_time_ns() - begin_ns;
}

static void round_run(struct worker_job *worker_job) {
    struct reaper_job *job = container_of(worker_job, struct reaper_job, job);
    question_run(job);
    look_run(job);
}

/* --- on the loop's --- */

static void job_freep(struct reaper_job **job) {
    if (*job == NULL)
        return;
    free((*job)->processes);
    free((*job)->subjects);
    free((*job)->exempt);
    free(*job);
}

static uint64_t between(uint64_t least, uint64_t value, uint64_t most) {
    return value < least ? least : value > most ? most : value;
}

static void set_next(struct reaping *reaping, uint64_t now_ns) {
    uint64_t most_ns = reaping->state == REAPING_DYING ? INTERVAL_MAX_NS : WATCH_MAX_NS;
    reaping->next_ns =
        now_ns + between(INTERVAL_MIN_NS, (now_ns - reaping->since_ns) / INTERVAL_DIVISOR, most_ns);
}

static bool is_alive(const struct reaping *reaping) {
    struct pollfd event = {.fd = reaping->pidfd, .events = POLLIN};
    return poll(&event, 1, 0) == 0;
}

static const struct gpu_process *find_process(const struct reaper_job *job, pid_t pid) {
    const struct gpu_process *found = NULL;
    for (size_t i = 0; i < job->n_processes; i++)
        if (job->processes[i].pid == pid && (found == NULL || job->processes[i].under_mps))
            found = &job->processes[i];
    return found;
}

static const struct holders_subject *find_subject(const struct reaper_job *job, uint64_t token) {
    for (size_t i = 0; i < job->n_subjects; i++)
        if (job->subjects[i].token == token)
            return &job->subjects[i];
    return NULL;
}

/* The answer came while the process lived: so it was its pid that was listed. */
static void take_presence(const struct reaper_job *job, struct reaping *reaping) {
    const struct gpu_process *process = find_process(job, reaping->pid);
    if (process == NULL || reaping->pid <= 0 || !is_alive(reaping))
        return;
    reaping->facts.seen = true;
    reaping->facts.under_mps |= process->under_mps;
    reaper_forget(reaping);
    reaping->on_facts(reaping);
}

/* Other errors say nothing, and the question is put again. */
static bool can_tell(const struct reaper_job *job) {
    return job->result == 0 || job->result == GPU_ERROR_NOT_SUPPORTED;
}

static void take_death(const struct reaper_job *job, struct reaping *reaping) {
    const struct holders_subject *look = find_subject(job, reaping->token);

    if (reaping->since_round >= job->number)
        return;
    if (can_tell(job))
        reaping->facts.listing = job->result != 0 || reaping->pid <= 0     ? LISTING_UNKNOWN
                                 : find_process(job, reaping->pid) != NULL ? LISTING_PRESENT
                                                                           : LISTING_ABSENT;
    if (reaping->pid <= 0) { /* nor would its children be in this /proc */
        reaping->facts.holders = HOLDERS_UNKNOWN;
    } else if (look != NULL) {
        reaping->facts.holders = look->holders;
        reaping->facts.holder = look->holder;
        memcpy(reaping->facts.holder_path, look->holder_path, sizeof reaping->facts.holder_path);
    }
    reaping->facts.socket_over = reaping->facts.socket_over || reaper_socket_is_over(reaping->socket);
    reaping->on_facts(reaping);
}

static void complain(struct reaper *reaper, const struct reaper_job *job) {
    if (can_tell(job) || reaper->complained)
        return;
    log_warning("asking the driver for its processes failed with %s: memory of processes that ended stays in "
                "quarantine until it answers",
                reaper->daemon->gpu->error_name(job->result));
    reaper->complained = true;
}

static void round_done(struct worker_job *worker_job) {
    _cleanup_(job_freep) struct reaper_job *job = container_of(worker_job, struct reaper_job, job);
    struct reaper *reaper = job->reaper;
    uint64_t now_ns = clock_now_ns();

    reaper->job = NULL;
    complain(reaper, job);
    if (job->n_subjects > 0)
        reaper->next_look_ns = now_ns + LOOK_DIVISOR * job->look_ns;
    /* By way of a list of their own: what happens to one may end or move any other. */
    struct list asked;
    list_init(&asked);
    while (!list_is_empty(&reaper->subjects)) {
        struct list *first = reaper->subjects.next;
        list_remove(first);
        list_append(&asked, first);
    }
    while (!list_is_empty(&asked)) {
        struct reaping *reaping = list_first(&asked, struct reaping, link);
        list_remove(&reaping->link);
        list_append(&reaper->subjects, &reaping->link);
        set_next(reaping, now_ns);
        if (reaping->state == REAPING_WATCHED)
            take_presence(job, reaping);
        else
            take_death(job, reaping);
    }
    reaper_arm(reaper);
}

/* Who cannot be told of without a look into /proc. */
static bool needs_look(const struct reaping *reaping) {
    if (reaping->state != REAPING_DYING || reaping->pid <= 0)
        return false;
    switch (death_judge(&reaping->facts)) {
    case DEATH_AWAITS_HOLDERS:
    case DEATH_HELD:
    case DEATH_HIDDEN:
    case DEATH_UNKNOWABLE:
        return true;
    default:
        return false;
    }
}

/* Lists who need a look, and who live and are so beyond suspicion. Returns 0 or -ENOMEM. */
static int prepare_look(struct reaper *reaper, struct reaper_job *job) {
    struct daemon *daemon = reaper->daemon;
    size_t n_subjects = 0;

    list_for_each(position, &reaper->subjects) n_subjects +=
        needs_look(container_of(position, struct reaping, link));
    if (n_subjects == 0)
        return 0;
    job->subjects = calloc(n_subjects, sizeof *job->subjects);
    job->exempt = calloc(daemon->n_clients + 1, sizeof *job->exempt);
    if (job->subjects == NULL || job->exempt == NULL)
        return -ENOMEM;
    list_for_each(position, &reaper->subjects) {
        const struct reaping *reaping = container_of(position, struct reaping, link);
        if (needs_look(reaping))
            job->subjects[job->n_subjects++] = (struct holders_subject){
                .token = reaping->token, .origin = reaping->origin, .uid = reaping->uid};
    }
    list_for_each(position, &daemon->clients) {
        const struct client *client = container_of(position, struct client, link);
        if (client->state == CLIENT_OPEN && !client_process_is_over(client) && client->peer.pid > 0)
            job->exempt[job->n_exempt++] = client->peer.pid;
    }
    return 0;
}

static void reaper_begin(struct reaper *reaper) {
    if (reaper->job != NULL || !reaper->started)
        return;
    _cleanup_(job_freep) struct reaper_job *job = calloc(1, sizeof *job);
    if (job != NULL)
        job->processes = calloc(PROCESSES_ROOM, sizeof *job->processes);
    if (job == NULL || job->processes == NULL ||
        (clock_now_ns() >= reaper->next_look_ns && prepare_look(reaper, job) < 0))
        return; /* without memory the timer tries again */
    job->job.run = round_run;
    job->job.done = round_done;
    job->reaper = reaper;
    job->number = ++reaper->rounds;
    job->room = PROCESSES_ROOM;
    reaper->job = job;
    worker_submit(&reaper->worker, &take_ptr(&job)->job);
}

static void reaper_on_timer(uv_timer_t *timer) {
    struct reaper *reaper = timer->data;
    reaper_begin(reaper);
    reaper_arm(reaper);
}

/* Sets the timer for the first that is to be asked about. A round under way sets it anew when it is done. */
static void reaper_arm(struct reaper *reaper) {
    uint64_t next_ns = NS_FOREVER, now_ns = clock_now_ns();

    if (!reaper->started)
        return;
    list_for_each(position, &reaper->subjects) {
        uint64_t its_ns = container_of(position, struct reaping, link)->next_ns;
        next_ns = its_ns < next_ns ? its_ns : next_ns;
    }
    if (next_ns == NS_FOREVER) {
        uv_timer_stop(&reaper->timer);
        return;
    }
    if (reaper->job != NULL || next_ns < now_ns)
        next_ns = now_ns + (reaper->job != NULL ? INTERVAL_MIN_NS : 0);
    uv_update_time(&reaper->daemon->loop);
    uv_timer_start(&reaper->timer, reaper_on_timer, (next_ns - now_ns) / NS_PER_MS + 1, 0);
}

int reaper_start(struct reaper *reaper, struct daemon *daemon) {
    *reaper = (struct reaper){.daemon = daemon};
    list_init(&reaper->subjects);
    reaper->list_name = daemon->gpu_kind == PROTO_GPU_SIM ? "the simulated driver" : "NVML";
    reaper->no_driver = daemon->gpu == NULL && !holders_driver_is_loaded("/proc");
    int r = worker_start(&reaper->worker, &daemon->loop, "reaper");
    if (r < 0)
        return r;
    uv_timer_init(&daemon->loop, &reaper->timer);
    reaper->timer.data = reaper;
    reaper->started = true;
    return 0;
}

void reaper_stop(struct reaper *reaper) {
    if (!reaper->started)
        return;
    reaper->started = false;
    uv_close((uv_handle_t *)&reaper->timer, NULL);
    worker_stop(&reaper->worker);
}

void reaping_init(struct reaping *reaping, pid_t pid, uid_t uid, int pidfd, int socket) {
    *reaping = (struct reaping){.pid = pid, .uid = uid, .pidfd = pidfd, .socket = socket};
    list_init(&reaping->link);
}

static void reaping_enter(struct reaper *reaper, struct reaping *reaping, enum reaping_state state) {
    uint64_t now_ns = clock_now_ns();

    list_remove(&reaping->link);
    reaping->state = state;
    reaping->token = ++reaper->last_token;
    reaping->since_ns = now_ns;
    reaping->since_round = reaper->rounds;
    reaping->next_ns = now_ns;
    list_append(&reaper->subjects, &reaping->link);
    reaper_begin(reaper);
    reaper_arm(reaper);
}

void reaper_watch(struct reaper *reaper, struct reaping *reaping) {
    if (!reaping->has_origin) { /* while it lives its pid is its own */
        process_origin_read(&reaping->origin, &reaper->origin_cache, "/proc", reaping->pid);
        reaping->has_origin = true;
        /* Who had ended before it was given anything cannot have mapped any of it. */
        reaping->too_late = !is_alive(reaping);
        reaping->facts.no_gpu_work |= reaping->too_late;
    }
    if (reaping->too_late)
        return;
    if (reaping->facts.seen || reaping->pid <= 0 || reaper->daemon->gpu == NULL)
        return;
    reaping_enter(reaper, reaping, REAPING_WATCHED);
}

void reaper_wait(struct reaper *reaper, struct reaping *reaping) {
    reaping_enter(reaper, reaping, REAPING_DYING);
}

void reaper_forget(struct reaping *reaping) {
    list_remove(&reaping->link);
    reaping->state = REAPING_IDLE;
}
