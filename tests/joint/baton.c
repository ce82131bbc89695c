/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler. Each simulated thread is a thread of the system, and exactly one of them has the baton and
 * runs. A thread hands it on in a call that would block, and now and then in others. The thread that hands it
 * on draws the next one. The work of daemon, GPU and connections is done on its stack, between two threads.
 *
 * Time goes on a little with each step. When no thread can run, and nothing outside can happen, it jumps to
 * the next deadline.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/joint/wrapped.h"
#include "tests/joint/world.h"

#define THREADS_MAX  128u
#define TIMERS_MAX   32u
#define STEP_NS      200u
#define STALL_MAX    400u
#define EVENTS_MAX   2000000u /* between two jumps of the clock: more is a livelock */

struct thread {
    pthread_t thread;
    void *(*main)(void *argument);
    void *argument;
    bool (*is_ready)(void *argument); /* NULL: it can run */
    void *ready_argument;
    uint64_t deadline_ns;
    bool timed_out;
    bool is_over, is_abandoned;
    bool naps;              /* it looks at something again after a pause */
    uint64_t stalled_until; /* a step */
    unsigned client, number;
    int n_locks, n_static_locks;
    _Atomic uint32_t has_baton;
};

struct timer {
    int fd;
    uint64_t at_ns, interval_ns;
};

static struct thread threads[THREADS_MAX];
static unsigned n_threads;
static struct timer timers[TIMERS_MAX];
static unsigned n_timers;
static bool is_in_world = true;
static bool rests; /* the main thread waits until nothing can go on without the clock */
static bool has_rested;
static uint64_t rest_end_ns;
static unsigned rest_jumps, rest_jumps_max;
static bool (*rest_is_over)(void *argument);
static void *rest_argument;
static uint64_t last_jump_step;
static _Thread_local struct thread *self;

bool baton_is_on(void) {
    return self != NULL && !is_in_world;
}

void baton_enter_world(void) {
    is_in_world = true;
}

void baton_leave_world(void) {
    is_in_world = false;
}

unsigned baton_client(void) {
    return self->client;
}

void baton_set_client(unsigned client) {
    self->client = client;
}

unsigned baton_number(void) {
    return self->number;
}

void baton_count_locks(int change) {
    self->n_locks += change;
}

bool baton_has_no_locks(unsigned client) {
    for (unsigned i = 0; i < n_threads; i++)
        if (threads[i].client == client && !threads[i].is_over && threads[i].n_locks > 0)
            return false;
    return true;
}

void baton_count_static_locks(int change) {
    self->n_static_locks += change;
}

/* --- timers --- */

void baton_drop_timer(int fd) {
    for (unsigned i = 0; i < n_timers; i++)
        if (timers[i].fd == fd) {
            timers[i] = timers[--n_timers];
            return;
        }
}

void baton_set_timer(int fd, uint64_t at_ns, uint64_t interval_ns) {
    baton_drop_timer(fd);
    must(n_timers < TIMERS_MAX, "the simulator has no room for a timer");
    timers[n_timers++] = (struct timer){fd, at_ns, interval_ns};
}

static void run_timers(void) {
    for (unsigned i = 0; i < n_timers; i++) {
        uint64_t one = 1;
        if (timers[i].at_ns > world.now_ns)
            continue;
        (void)!__real_write(timers[i].fd, &one, sizeof one);
        timers[i].at_ns = timers[i].interval_ns > 0 ? world.now_ns + timers[i].interval_ns : NS_FOREVER;
    }
}

/* --- choosing --- */

static bool can_run(struct thread *thread) {
    if (thread->is_over || thread->is_abandoned || thread->stalled_until > world.step)
        return false;
    if (thread->is_ready == NULL)
        return true;
    if (thread->is_ready(thread->ready_argument)) {
        thread->is_ready = NULL;
        return true;
    }
    if (thread->deadline_ns <= world.now_ns) {
        thread->is_ready = NULL;
        thread->timed_out = true;
        return true;
    }
    return false;
}

static bool wake_stalled(void) {
    bool any = false;
    for (unsigned i = 0; i < n_threads; i++) {
        any = any || (threads[i].stalled_until > world.step && !threads[i].is_over && !threads[i].is_abandoned);
        threads[i].stalled_until = 0;
    }
    return any;
}

static bool act_outside(bool all) {
    /* A GPU that sleeps comes last. */
    unsigned start = all && world.gpu_sleeps > 0 ? 2 : (unsigned)random_below(3);
    bool any = false;

    is_in_world = true;
    for (unsigned i = 0; i < 3 && !any; i++) {
        unsigned which = (start + i) % 3;
        any = which == 0 ? daemon_act() : which == 1 ? gpu_act(all) : wires_act();
        if (!all)
            break;
    }
    is_in_world = false;
    return any;
}

static uint64_t next_ns(void) {
    uint64_t next = daemon_next_ns();
    for (unsigned i = 0; i < n_threads; i++)
        if (!threads[i].is_over && !threads[i].is_abandoned && threads[i].is_ready != NULL &&
            threads[i].deadline_ns < next)
            next = threads[i].deadline_ns;
    for (unsigned i = 0; i < n_timers; i++)
        if (timers[i].at_ns < next)
            next = timers[i].at_ns;
    return next;
}

/* The clock goes to the next deadline. False: the main thread waited for this moment. */
static bool jump(void) {
    uint64_t next = next_ns();

    last_jump_step = world.step;
    if (rests && (rest_is_over == NULL || rest_is_over(rest_argument) || rest_jumps >= rest_jumps_max ||
                  next > rest_end_ns)) {
        has_rested = true;
        return false;
    }
    must(next != NS_FOREVER, "all threads wait, and nothing is to come");
    rest_jumps++;
    world.tally->clock_jumps++;
    if (next > world.now_ns)
        world.now_ns = next;
    run_timers();
    return true;
}

static struct thread *choose(void) {
    for (;;) {
        world.step++;
        *world.progress_step = world.step;
        world.tally->steps++;
        world.now_ns += STEP_NS;
        must(world.step - last_jump_step < EVENTS_MAX, "the clients and the daemon go on for ever");
        run_timers();
        if (one_in(world.acts) && act_outside(false))
            continue;
        unsigned start = (unsigned)random_below(n_threads);
        for (unsigned i = 0; i < n_threads; i++) {
            struct thread *thread = &threads[(start + i) % n_threads];
            if (can_run(thread))
                return thread;
        }
        if (wake_stalled() || act_outside(true))
            continue;
        (void)jump();
    }
}

/* --- the baton --- */

static void give_to(struct thread *thread) {
    atomic_store(&thread->has_baton, 1);
    __real_syscall(SYS_futex, &thread->has_baton, FUTEX_WAKE_PRIVATE, 1, (void *)NULL, (void *)NULL, 0);
}

static void await(struct thread *thread) {
    while (atomic_exchange(&thread->has_baton, 0) == 0)
        __real_syscall(SYS_futex, &thread->has_baton, FUTEX_WAIT_PRIVATE, 0, (void *)NULL, (void *)NULL, 0);
    self = thread;
}

static void hand_on(void) {
    int error = errno;
    struct thread *from = self, *to = choose();

    if (to != from) {
        world.tally->switches++;
        give_to(to);
        await(from);
    }
    errno = error;
}

void baton_pass(void) {
    if (world.stalls > 0 && self != &threads[0] && one_in(world.stalls))
        self->stalled_until = world.step + 1 + random_below(STALL_MAX);
    hand_on();
}

void baton_may_pass(void) {
    if (one_in(world.yields))
        baton_pass();
}

bool baton_wait(bool (*is_ready)(void *argument), void *argument, uint64_t deadline_ns) {
    if (is_ready(argument))
        return true;
    self->is_ready = is_ready;
    self->ready_argument = argument;
    self->deadline_ns = deadline_ns;
    self->timed_out = false;
    hand_on();
    return !self->timed_out;
}

static bool never(void *argument) {
    (void)argument;
    return false;
}

void baton_nap(uint64_t deadline_ns) {
    self->naps = true;
    baton_wait(never, NULL, deadline_ns);
    self->naps = false;
}

bool baton_nobody_naps(void *argument) {
    (void)argument;
    for (unsigned i = 0; i < n_threads; i++)
        if (threads[i].naps && !threads[i].is_over && !threads[i].is_abandoned)
            return false;
    return true;
}

static bool is_at_rest(void *argument) {
    (void)argument;
    return has_rested;
}

unsigned baton_rest_until(uint64_t end_ns, unsigned most_jumps, bool (*is_over)(void *), void *argument) {
    rests = true;
    has_rested = false;
    rest_jumps = 0;
    rest_jumps_max = most_jumps;
    rest_end_ns = end_ns;
    rest_is_over = is_over;
    rest_argument = argument;
    baton_wait(is_at_rest, NULL, NS_FOREVER);
    rests = false;
    return rest_jumps;
}

void baton_rest(void) {
    baton_rest_until(0, 0, NULL, NULL);
}

/* --- threads --- */

void baton_begin(void) {
    self = &threads[0];
    self->client = JOINT_CLIENTS;
    n_threads = 1;
    is_in_world = false;
}

static void *thread_main(void *argument) {
    struct thread *thread = argument;

    await(thread);
    thread->main(thread->argument);
    wrapped_run_destructors();
    thread->is_over = true;
    thread->is_ready = NULL;
    struct thread *to = choose();
    world.tally->switches++;
    self = NULL;
    give_to(to);
    return NULL;
}

int baton_create(pthread_t *ret_thread, void *(*main)(void *), void *argument) {
    unsigned place = 1;

    while (place < n_threads && !threads[place].is_over)
        place++;
    if (place == THREADS_MAX)
        return EAGAIN;
    struct thread *thread = &threads[place];
    static unsigned number;
    number++;
    *thread = (struct thread){.main = main, .argument = argument, .client = self->client, .number = number};
    int r = __real_pthread_create(&thread->thread, NULL, thread_main, thread);
    if (r != 0) {
        thread->is_over = true;
        return r;
    }
    if (place == n_threads)
        n_threads++;
    *ret_thread = thread->thread;
    return 0;
}

struct joining {
    pthread_t thread;
};

static bool is_joined(void *argument) {
    const struct joining *joining = argument;
    for (unsigned i = 0; i < n_threads; i++)
        if (pthread_equal(threads[i].thread, joining->thread) && !threads[i].is_over)
            return false;
    return true;
}

void baton_join(pthread_t thread) {
    struct joining joining = {thread};
    baton_wait(is_joined, &joining, NS_FOREVER);
    __real_pthread_join(thread, NULL);
}

bool baton_abandon(unsigned client) {
    for (unsigned i = 0; i < n_threads; i++)
        if (threads[i].client == client && !threads[i].is_over && threads[i].n_static_locks > 0)
            return false;
    for (unsigned i = 0; i < n_threads; i++)
        if (threads[i].client == client && !threads[i].is_over)
            threads[i].is_abandoned = true;
    return true;
}
