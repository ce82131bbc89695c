/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planned failures and hangs of the simulated GPU. A plan names a call of the table, perhaps on one device,
 * and which of its calls it means; it counts for itself, from the moment it was made. Plans of the
 * environment live as long as the process; one more is made, and replaced, by gpu_sim_fail(). A plan that
 * loses its device makes all further calls on it fail, as CUDA's sticky errors do. All under one lock;
 * without any plan a call costs one load.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "gpu/sim/internal.h"

#define PLANS_MAX                  32u  /* of the environment; more than any test has wanted */
#define PLAN_TEXT_MAX              128u /* one entry: a call's name and two numbers, or a number and a path */
#define HANG_LOOK_NS               NS_PER_MS /* between looks for the file that a call hangs on */
#define ERROR_INITIALIZATION_ERROR 3         /* what CUDA says in a forked child */
#define NO_DEVICE                  UINT32_MAX

#define CALL_NAME(name, member) [SIM_##name] = #member,
static const char *const call_names[] = {SIM_CALLS(CALL_NAME)};

struct plan {
    enum sim_call call;
    uint64_t nth;  /* 0: empty */
    uint64_t seen; /* calls so far */
    bool and_later;
    bool loses;      /* all later calls on its device fail, too */
    bool at_random;  /* one call in nth, instead of the nth */
    unsigned device; /* physical; NO_DEVICE: any */
    bool hit;
    int error;                   /* a failure */
    uint64_t hang_ns;            /* a hang that ends by itself, */
    char hang_on[PLAN_TEXT_MAX]; /* and one that lasts as long as there is this file; empty: not so */
};

static struct {
    pthread_mutex_t lock;
    struct plan plans[PLANS_MAX];
    size_t plan_count;
    struct plan in_process;
    bool any;                      /* atomic: there is a plan at all */
    int lost[GPU_SIM_DEVICES_MAX]; /* what calls on the device fail with; 0: it is not lost */
    uint64_t random;
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int call_parse(const char *text, enum sim_call *ret_call) {
    for (unsigned i = 0; i < sizeof(call_names) / sizeof(call_names[0]); i++)
        if (strcmp(text, call_names[i]) == 0) {
            *ret_call = (enum sim_call)i;
            return 0;
        }
    return -EINVAL;
}

/* A decimal number up to where the text goes on. */
static int number_parse(char **text, uint64_t max, uint64_t *ret_number) {
    char *end;
    unsigned long long number;

    if (**text < '0' || **text > '9')
        return -EINVAL;
    errno = 0;
    number = strtoull(*text, &end, 10);
    if (errno != 0 || number > max)
        return -EINVAL;
    *text = end;
    *ret_number = number;
    return 0;
}

/* One "call[@device]:[~]n[+|!]:number", or a path in place of the number. */
static int plan_parse(char *text, bool is_hang, struct plan *ret_plan) {
    struct plan plan = {.device = NO_DEVICE};
    uint64_t number;
    char *colon = strchr(text, ':');

    if (colon == NULL)
        return -EINVAL;
    *colon = '\0';
    char *at = strchr(text, '@');
    if (at != NULL) {
        *at++ = '\0';
        if (number_parse(&at, GPU_SIM_DEVICES_MAX - 1, &number) < 0 || *at != '\0')
            return -EINVAL;
        plan.device = (unsigned)number;
    }
    if (call_parse(text, &plan.call) < 0)
        return -EINVAL;
    text = colon + 1;
    if (*text == '~') {
        plan.at_random = true;
        text++;
    }
    if (number_parse(&text, UINT32_MAX, &plan.nth) < 0 || plan.nth == 0)
        return -EINVAL;
    if (*text == '+' && !plan.at_random) {
        plan.and_later = true;
        text++;
    } else if (*text == '!' && !is_hang) {
        plan.loses = true;
        text++;
    }
    if (*text++ != ':')
        return -EINVAL;
    if (is_hang && *text == '/') {
        snprintf(plan.hang_on, sizeof(plan.hang_on), "%s", text);
        *ret_plan = plan;
        return 0;
    }
    if (number_parse(&text, INT32_MAX, &number) < 0 || number == 0 || *text != '\0')
        return -EINVAL;
    if (is_hang)
        plan.hang_ns = number * NS_PER_MS;
    else
        plan.error = (int)number;
    *ret_plan = plan;
    return 0;
}

static int plans_parse(const char *text, bool is_hang) {
    while (text != NULL && *text != '\0') {
        char entry[PLAN_TEXT_MAX];
        const char *comma = strchrnul(text, ',');
        size_t length = (size_t)(comma - text);

        if (length >= sizeof(entry) || faults.plan_count == PLANS_MAX)
            return -EINVAL;
        memcpy(entry, text, length);
        entry[length] = '\0';
        if (plan_parse(entry, is_hang, &faults.plans[faults.plan_count]) < 0)
            return -EINVAL;
        faults.plan_count++;
        text = *comma == ',' ? comma + 1 : comma;
    }
    return 0;
}

int sim_fault_init(void) {
    LOCKED(&faults.lock);
    const char *seed = secure_getenv("GPUPOOL_SIM_SEED");

    faults.plan_count = 0;
    faults.random = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    int r = plans_parse(secure_getenv("GPUPOOL_SIM_FAIL"), false);
    if (r == 0)
        r = plans_parse(secure_getenv("GPUPOOL_SIM_HANG"), true);
    if (r < 0)
        faults.plan_count = 0;
    if (faults.plan_count > 0)
        __atomic_store_n(&faults.any, true, __ATOMIC_RELEASE);
    return r < 0 ? GPU_ERROR_INVALID_VALUE : 0;
}

/* splitmix64 */
static uint64_t random_next(void) {
    uint64_t z = faults.random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Counts a call. Returns whether the plan means it. physical: NO_DEVICE for a call that names none. */
static bool plan_hit(struct plan *plan, enum sim_call call, unsigned physical) {
    if (plan->nth == 0 || (plan->call != SIM_CALL_ANY && plan->call != call) ||
        (plan->device != NO_DEVICE && plan->device != physical))
        return false;
    plan->seen++;
    if (plan->at_random ? random_next() % plan->nth != 0
                        : plan->seen != plan->nth && !(plan->and_later && plan->seen > plan->nth))
        return false;
    plan->hit = true;
    return true;
}

/* The system management's view of a device does not end with a process's context on it, as NVML's does not.
 */
static bool is_lost_with_its_device(enum sim_call call) {
    return call != SIM_DEVICE_DESCRIBE && call != SIM_DEVICE_MEMORY && call != SIM_PROCESSES;
}

static void sleep_for(uint64_t ns) {
    struct timespec left = {.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        continue;
}

static int enter(enum sim_call call, unsigned physical) {
    char hang_on[PLAN_TEXT_MAX];
    uint64_t hang_ns = 0;
    int error = 0;

    if (sim_settings.forked)
        return ERROR_INITIALIZATION_ERROR;
    if (!__atomic_load_n(&faults.any, __ATOMIC_ACQUIRE))
        return 0;
    hang_on[0] = '\0';
    pthread_mutex_lock(&faults.lock);
    for (size_t i = 0; i < faults.plan_count; i++) {
        struct plan *plan = &faults.plans[i];

        if (!plan_hit(plan, call, physical))
            continue;
        if (plan->hang_ns > 0)
            hang_ns = plan->hang_ns;
        else if (plan->hang_on[0] != '\0')
            memcpy(hang_on, plan->hang_on, sizeof(hang_on));
        else if (error == 0)
            error = plan->error;
        if (plan->loses && physical != NO_DEVICE && faults.lost[physical] == 0)
            faults.lost[physical] = plan->error;
    }
    if (plan_hit(&faults.in_process, call, physical) && error == 0)
        error = faults.in_process.error;
    if (error == 0 && physical != NO_DEVICE && is_lost_with_its_device(call))
        error = faults.lost[physical];
    pthread_mutex_unlock(&faults.lock);
    if (hang_ns > 0)
        sleep_for(hang_ns);
    while (hang_on[0] != '\0' && access(hang_on, F_OK) == 0)
        sleep_for(HANG_LOOK_NS);
    return error;
}

bool sim_is_lost(unsigned physical) {
    LOCKED(&faults.lock);
    return faults.lost[physical] != 0;
}

void sim_lose(unsigned physical, int error) {
    LOCKED(&faults.lock);
    if (faults.lost[physical] == 0)
        faults.lost[physical] = error;
    __atomic_store_n(&faults.any, true, __ATOMIC_RELEASE);
}

int sim_enter(enum sim_call call) {
    return enter(call, NO_DEVICE);
}

int sim_enter_on(enum sim_call call, unsigned device, unsigned *ret_physical) {
    unsigned physical = NO_DEVICE;
    int invalid = sim_device(device, &physical), r = enter(call, physical);

    if (r != 0 || invalid != 0)
        return r != 0 ? r : invalid;
    *ret_physical = physical;
    return 0;
}

int sim_enter_context(enum sim_call call, unsigned device, unsigned *ret_physical) {
    int r = sim_enter_on(call, device, ret_physical);
    return r != 0 ? r : sim_context(device, ret_physical);
}

int gpu_sim_fail(const char *call, unsigned nth, int error) {
    enum sim_call parsed;

    if (call_parse(call, &parsed) < 0)
        return -EINVAL;
    LOCKED(&faults.lock);
    faults.in_process = (struct plan){.call = parsed, .nth = nth, .device = NO_DEVICE, .error = error};
    if (nth > 0)
        __atomic_store_n(&faults.any, true, __ATOMIC_RELEASE);
    return 0;
}

bool gpu_sim_failed(void) {
    LOCKED(&faults.lock);
    return faults.in_process.hit;
}
