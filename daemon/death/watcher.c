/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/death/watcher.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/death/holders.h"
#include "daemon/loop/log.h"

/* A dead process is listed for some 50 ms (H200); a question takes up to a few hundred µs. */
#define INTERVAL_MIN_NS (20 * NS_PER_MS)
/* A process that was asked about for long waits for something that takes long, such as a forked child's end.
 */
#define INTERVAL_MAX_NS  (1 * NS_PER_S)
#define INTERVAL_DIVISOR 8
/* A living process that is not in the list may have made its context by then; a context takes a third of a
 * second. */
#define WATCH_MAX_NS (5 * NS_PER_S)
/* A process that stays listed, or whose socket stays open, for longer than that has left a child, which a
 * look is to name. */
#define NAMED_AFTER_NS (1 * NS_PER_S)
/* Looks into /proc take a tenth of a processor at most. Only the thread's own time counts: on a busy machine
 * clients would otherwise wait ten times as long. */
#define LOOK_DIVISOR   10
/* For people: how much memory processes have beside the pools. */
#define SIZES_INTERVAL_NS (5 * NS_PER_S)
#define SIZES_FRESH_NS    (1 * NS_PER_S)
#define PROCESSES_ROOM 1024u /* to begin with */

/* A round: a question to the list, and a look into /proc where a process needs it. */
struct watcher_job {
    struct worker_job job;
    struct watcher *watcher;
    uint64_t number;
    int result; /* of the question */
    struct gpu_process *processes;
    size_t n_processes, room;
    struct holders_subject *subjects; /* processes that need a look */
    size_t n_subjects;
    pid_t *exempt; /* clients that live, and room for those that are listed */
    size_t n_exempt;
    uint64_t look_ns; /* what the look took, of a processor */
};

static void watcher_arm(struct watcher *watcher);
static void watcher_begin(struct watcher *watcher);

bool watcher_socket_is_over(int socket) {
    struct pollfd event = {.fd = socket, .events = 0};
    return socket < 0 || (poll(&event, 1, 0) > 0 && (event.revents & (POLLHUP | POLLERR)) != 0);
}

/* --- on the worker's thread --- */

static void question_run(struct watcher_job *job) {
    const struct gpu *gpu = job->watcher->gpu;
    size_t count = 0;

    job->result = GPU_ERROR_NOT_SUPPORTED;
    if (gpu == NULL)
        return;
    worker_enter_call(&job->watcher->worker, "the list of processes");
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
    worker_leave_call(&job->watcher->worker);
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

static void look_run(struct watcher_job *job) {
    char device_files[GPU_DEVICE_FILES_SIZE] = "/dev/nvidia";
    const struct gpu *gpu = job->watcher->gpu;
    uint64_t begin_ns = thread_time_ns();

    if (job->n_subjects == 0)
        return;
    if (gpu != NULL)
        gpu->device_files(device_files);
    pid_t *exempt = realloc(job->exempt, (job->n_exempt + job->n_processes + 1) * sizeof *exempt);
    if (exempt != NULL) { /* else more processes are suspects than need be */
        job->exempt = exempt;
        for (size_t i = 0; i < job->n_processes; i++)
            exempt[job->n_exempt++] = job->processes[i].pid;
    }
    if (job->n_exempt > 0)
        qsort(job->exempt, job->n_exempt, sizeof *job->exempt, compare_pids);
    holders_look("/proc", device_files, job->exempt, job->n_exempt, job->subjects, job->n_subjects);
    for (size_t i = 0; i < job->n_subjects; i++)
        if (job->subjects[i].holders == HOLDERS_NONE) { /* once more, to be sure: see holders_look() */
            worker_beat(&job->watcher->worker);
            holders_look("/proc", device_files, job->exempt, job->n_exempt, job->subjects, job->n_subjects);
            break;
        }
    job->look_ns = thread_time_ns() - begin_ns;
}

static void round_run(struct worker_job *worker_job) {
    struct watcher_job *job = container_of(worker_job, struct watcher_job, job);
    question_run(job);
    look_run(job);
}

/* --- on the loop's --- */

static void job_freep(struct watcher_job **job) {
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

static void set_next(struct watched *watched, uint64_t now_ns) {
    uint64_t most_ns = watched->state == WATCHED_ENDED ? INTERVAL_MAX_NS : WATCH_MAX_NS;
    watched->next_ns =
        now_ns + between(INTERVAL_MIN_NS, (now_ns - watched->since_ns) / INTERVAL_DIVISOR, most_ns);
}

static bool is_alive(const struct watched *watched) {
    struct pollfd event = {.fd = watched->pidfd, .events = POLLIN};
    return poll(&event, 1, 0) == 0;
}

static const struct gpu_process *find_process(const struct watcher_job *job, pid_t pid) {
    const struct gpu_process *found = NULL;
    for (size_t i = 0; i < job->n_processes; i++)
        if (job->processes[i].pid == pid && (found == NULL || job->processes[i].under_mps))
            found = &job->processes[i];
    return found;
}

static const struct holders_subject *find_subject(const struct watcher_job *job, uint64_t token) {
    for (size_t i = 0; i < job->n_subjects; i++)
        if (job->subjects[i].token == token)
            return &job->subjects[i];
    return NULL;
}

/* The answer came while the process lived: so it was its pid that was listed. */
static void take_presence(const struct watcher_job *job, struct watched *watched) {
    const struct gpu_process *process = find_process(job, watched->pid);
    if (process == NULL || watched->pid <= 0 || !is_alive(watched))
        return;
    watched->facts.seen = true;
    watched->facts.under_mps |= process->under_mps;
    watcher_forget(watched);
    watched->on_facts(watched);
}

/* Other errors say nothing, and the question is put again. */
static bool can_tell(const struct watcher_job *job) {
    return job->result == 0 || job->result == GPU_ERROR_NOT_SUPPORTED;
}

static void take_look(const struct holders_subject *look, struct death_facts *facts) {
    bool is_found = look->holders == HOLDERS_SOME || look->holders == HOLDERS_HIDDEN;

    if (!look->is_for_people)
        facts->holders = look->holders;
    facts->holder = is_found ? look->holder : 0;
    memcpy(facts->holder_name, look->holder_name, sizeof facts->holder_name);
    memcpy(facts->holder_path, look->holder_path, sizeof facts->holder_path);
}

static void take_death(const struct watcher_job *job, struct watched *watched) {
    const struct holders_subject *look = find_subject(job, watched->token);

    if (watched->since_round >= job->number)
        return;
    if (can_tell(job))
        watched->facts.listing = job->result != 0 || watched->pid <= 0     ? LISTING_UNKNOWN
                                 : find_process(job, watched->pid) != NULL ? LISTING_PRESENT
                                                                           : LISTING_ABSENT;
    if (watched->pid <= 0) { /* nor would its children be in this /proc */
        watched->facts.holders = HOLDERS_UNKNOWN;
    } else if (look != NULL) {
        take_look(look, &watched->facts);
    }
    watched->facts.socket_over = watched->facts.socket_over || watcher_socket_is_over(watched->socket);
    watched->on_facts(watched);
}

/* --- memory beside the pools --- */

/* On all GPUs together. 0: the process is not listed. */
static uint64_t used_bytes(const struct watcher_job *job, pid_t pid) {
    uint64_t sum = 0;

    for (size_t i = 0; i < job->n_processes; i++) {
        if (job->processes[i].pid != pid)
            continue;
        if (job->processes[i].used_bytes == GPU_USED_UNKNOWN)
            return GPU_USED_UNKNOWN;
        sum += job->processes[i].used_bytes;
    }
    return sum;
}

/* Not of each round: there may be many, and this looks at each client. */
static bool are_sizes_due(const struct watcher *watcher, uint64_t now_ns, uint64_t interval_ns) {
    return watcher->sizes_ns == 0 || now_ns - watcher->sizes_ns >= interval_ns;
}

static void take_sizes(struct watcher *watcher, const struct watcher_job *job, uint64_t now_ns) {
    if (!are_sizes_due(watcher, now_ns, SIZES_INTERVAL_NS))
        return;
    watcher->sizes_ns = now_ns;
    list_for_each_entry(struct watched, watched, &watcher->processes, process_link) {
        bool is_known = job->result == 0 && watched->pid > 0;
        watched->own_bytes = is_known ? used_bytes(job, watched->pid) : GPU_USED_UNKNOWN;
    }
}

void watcher_refresh_sizes(struct watcher *watcher) {
    if (!watcher->started || watcher->gpu == NULL || !are_sizes_due(watcher, clock_now_ns(), SIZES_FRESH_NS))
        return;
    watcher->sizes_ns = 0;
    watcher_begin(watcher);
}

static void complain(struct watcher *watcher, const struct watcher_job *job) {
    if (can_tell(job) || watcher->complained)
        return;
    log_warning("asking the driver for its processes failed with %s: memory of processes that ended stays in "
                "quarantine until it answers",
                watcher->gpu->error_name(job->result));
    watcher->complained = true;
}

static void round_done(struct worker_job *worker_job) {
    _cleanup_(job_freep) struct watcher_job *job = container_of(worker_job, struct watcher_job, job);
    struct watcher *watcher = job->watcher;
    uint64_t now_ns = clock_now_ns();

    watcher->job = NULL;
    complain(watcher, job);
    take_sizes(watcher, job, now_ns);
    if (job->n_subjects > 0)
        watcher->next_look_ns = now_ns + LOOK_DIVISOR * job->look_ns;
    /* By way of a list of their own: the facts of one process may free or move any other. */
    struct list asked;
    list_init(&asked);
    while (!list_is_empty(&watcher->subjects)) {
        struct list *first = watcher->subjects.next;
        list_remove(first);
        list_append(&asked, first);
    }
    while (!list_is_empty(&asked)) {
        struct watched *watched = list_first(&asked, struct watched, link);
        list_remove(&watched->link);
        list_append(&watcher->subjects, &watched->link);
        set_next(watched, now_ns);
        if (watched->state == WATCHED_LIVING)
            take_presence(job, watched);
        else
            take_death(job, watched);
    }
    watcher_arm(watcher);
}

/* Whether a look into /proc can tell about the process, or name the one that holds its memory.
 * *ret_for_people: the verdict does not wait for it. */
static bool needs_look(const struct watched *watched, uint64_t now_ns, bool *ret_for_people) {
    *ret_for_people = false;
    if (watched->state != WATCHED_ENDED || watched->pid <= 0)
        return false;
    switch (death_judge(&watched->facts)) {
    case DEATH_AWAITS_HOLDERS:
    case DEATH_HELD:
    case DEATH_HIDDEN:
    case DEATH_UNKNOWABLE:
        return true;
    case DEATH_LISTED:
    case DEATH_AWAITS_SOCKET:
        *ret_for_people = true;
        return now_ns - watched->since_ns >= NAMED_AFTER_NS;
    default:
        return false;
    }
}

/* Lists the processes that need a look, and the living clients, which are no suspects. Returns 0 or -ENOMEM.
 */
static int prepare_look(struct watcher *watcher, struct watcher_job *job) {
    uint64_t now_ns = clock_now_ns();
    size_t n_subjects = 0;
    bool is_for_people;

    list_for_each_entry(struct watched, watched, &watcher->subjects, link) {
        n_subjects += needs_look(watched, now_ns, &is_for_people);
    }
    if (n_subjects == 0)
        return 0;
    job->subjects = calloc(n_subjects, sizeof *job->subjects);
    job->exempt = calloc(watcher->n_processes + 1, sizeof *job->exempt);
    if (job->subjects == NULL || job->exempt == NULL)
        return -ENOMEM;
    list_for_each_entry(const struct watched, watched, &watcher->subjects, link) {
        if (needs_look(watched, now_ns, &is_for_people))
            job->subjects[job->n_subjects++] = (struct holders_subject){.token = watched->token,
                                                                        .is_for_people = is_for_people,
                                                                        .origin = watched->origin,
                                                                        .uid = watched->uid};
    }
    list_for_each_entry(const struct watched, watched, &watcher->processes, process_link) {
        if (watched->has_session && !watched->facts.process_over && watched->pid > 0)
            job->exempt[job->n_exempt++] = watched->pid;
    }
    return 0;
}

static void watcher_begin(struct watcher *watcher) {
    if (watcher->job != NULL || !watcher->started)
        return;
    _cleanup_(job_freep) struct watcher_job *job = calloc(1, sizeof *job);
    if (job != NULL)
        job->processes = calloc(PROCESSES_ROOM, sizeof *job->processes);
    if (job == NULL || job->processes == NULL ||
        (clock_now_ns() >= watcher->next_look_ns && prepare_look(watcher, job) < 0))
        return; /* without memory the timer tries again */
    job->job.run = round_run;
    job->job.done = round_done;
    job->watcher = watcher;
    job->number = ++watcher->rounds;
    job->room = PROCESSES_ROOM;
    watcher->job = job;
    worker_submit(&watcher->worker, &take_ptr(&job)->job);
}

static void watcher_on_timer(uv_timer_t *timer) {
    struct watcher *watcher = timer->data;
    watcher_begin(watcher);
    watcher_arm(watcher);
}

/* Sets the timer for the process that is due first. A round in progress sets it again when it is done. */
static void watcher_arm(struct watcher *watcher) {
    uint64_t next_ns = NS_FOREVER, now_ns = clock_now_ns();

    if (!watcher->started)
        return;
    list_for_each_entry(const struct watched, watched, &watcher->subjects, link) {
        next_ns = watched->next_ns < next_ns ? watched->next_ns : next_ns;
    }
    if (watcher->n_processes > 0 && watcher->gpu != NULL && watcher->sizes_ns + SIZES_INTERVAL_NS < next_ns)
        next_ns = watcher->sizes_ns + SIZES_INTERVAL_NS;
    if (next_ns == NS_FOREVER) {
        uv_timer_stop(&watcher->timer);
        return;
    }
    if (watcher->job != NULL || next_ns < now_ns)
        next_ns = now_ns + (watcher->job != NULL ? INTERVAL_MIN_NS : 0);
    uv_update_time(watcher->timer.loop);
    uv_timer_start(&watcher->timer, watcher_on_timer, (next_ns - now_ns) / NS_PER_MS + 1, 0);
}

void watcher_init(struct watcher *watcher) {
    *watcher = (struct watcher){0};
    list_init(&watcher->subjects);
    list_init(&watcher->processes);
}

int watcher_start(struct watcher *watcher, const struct gpu *gpu, bool is_simulated, uv_loop_t *loop) {
    watcher->gpu = gpu;
    watcher->list_name = is_simulated ? "the simulated driver" : "NVML";
    watcher->no_driver = gpu == NULL && !holders_driver_is_loaded("/proc");
    int r = worker_start(&watcher->worker, loop, "watcher");
    if (r < 0)
        return r;
    uv_timer_init(loop, &watcher->timer);
    watcher->timer.data = watcher;
    watcher->started = true;
    return 0;
}

void watcher_stop(struct watcher *watcher) {
    if (!watcher->started)
        return;
    watcher->started = false;
    uv_close((uv_handle_t *)&watcher->timer, NULL);
    worker_stop(&watcher->worker);
}

static void watched_enter(struct watcher *watcher, struct watched *watched, enum watched_state state) {
    uint64_t now_ns = clock_now_ns();

    list_remove(&watched->link);
    watched->state = state;
    watched->token = ++watcher->last_token;
    watched->since_ns = now_ns;
    watched->since_round = watcher->rounds;
    watched->next_ns = now_ns;
    list_append(&watcher->subjects, &watched->link);
    watcher_begin(watcher);
    watcher_arm(watcher);
}

void watcher_watch_living(struct watcher *watcher, struct watched *watched) {
    if (!watched->has_origin) { /* while it lives its pid is its own */
        process_origin_read(&watched->origin, &watcher->origin_cache, "/proc", watched->pid);
        watched->has_origin = true;
        /* A process that had ended before it was given memory cannot have mapped any of it. */
        watched->too_late = !is_alive(watched);
        watched->facts.no_gpu_work |= watched->too_late;
    }
    if (watched->too_late)
        return;
    if (watched->facts.seen || watched->pid <= 0 || watcher->gpu == NULL)
        return;
    watched_enter(watcher, watched, WATCHED_LIVING);
}

void watcher_watch_ended(struct watcher *watcher, struct watched *watched) {
    watched_enter(watcher, watched, WATCHED_ENDED);
}

bool watcher_gets_on(struct watcher *watcher) {
    bool alive = !watcher->started || worker_is_alive(&watcher->worker);

    if (!alive && !watcher->stalled)
        log_warning(
            "the driver's list of processes (NVML) does not come: memory of processes that ended stays in "
            "quarantine until it does; systemd's watchdog is not answered");
    else if (alive && watcher->stalled)
        log_warning("the driver's list of processes comes again");
    watcher->stalled = !alive;
    return alive;
}

void watcher_add(struct watcher *watcher, struct watched *watched) {
    list_init(&watched->link);
    list_append(&watcher->processes, &watched->process_link);
    watcher->n_processes++;
}

void watcher_remove(struct watcher *watcher, struct watched *watched) {
    watcher_forget(watched);
    list_remove(&watched->process_link);
    watcher->n_processes--;
}

void watcher_forget(struct watched *watched) {
    list_remove(&watched->link);
    watched->state = WATCHED_IDLE;
}
