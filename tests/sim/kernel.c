/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/kernel.h"

#include <string.h>

#include "base/clock.h"
#include "tests/random.h"

#define FIRST_PID 100

unsigned kernel_spawn(struct kernel *kernel, unsigned tenant, uint64_t now_ns, uint64_t random) {
    unsigned p = 0;
    while (p < SIM_PROCESSES && kernel->processes[p].used)
        p++;
    if (p == SIM_PROCESSES)
        return p;
    pid_t pid = ++kernel->last_pid + FIRST_PID;
    /* Some get a pid that was used before, by a process whose end the daemon may still be waiting for. */
    unsigned other = (unsigned)(random % SIM_PROCESSES);
    const struct process *former = &kernel->processes[other];
    bool foreign = kernel->foreign_one_in > 0 && random / SIM_PROCESSES % kernel->foreign_one_in == 0;
    if (former->used && !foreign && kernel_process_is_over(kernel, other, now_ns))
        pid = former->pid;
    kernel->processes[p] = (struct process){.used = true,
                                            .pid = pid,
                                            .tenant = tenant,
                                            .alive = true,
                                            .foreign = foreign,
                                            .mps = random / 4096 % 16 == 0};
    return p;
}

static uint64_t draw(uint64_t *state, uint64_t bound_ns) {
    return random_next(state) % (bound_ns + 1);
}

void kernel_kill(struct kernel *kernel, unsigned p, uint64_t now_ns, uint64_t *random_state) {
    struct process *process = &kernel->processes[p];
    uint64_t work_ns = 0;

    switch (random_next(random_state) % 4) {
    case 0:
        break;
    case 1:
    case 2:
        work_ns = draw(random_state, 20 * NS_PER_MS);
        break;
    default:
        work_ns = draw(random_state, 3 * NS_PER_S);
    }
    process->alive = false;
    process->eof_ns = now_ns + draw(random_state, NS_PER_MS);
    if (!process->mapped)
        work_ns = 0;
    if (process->mps) { /* its work is the server's, and over before the process's end (F4 of the
                           measurements) */
        process->child_ns = now_ns;
        process->work_ns = process->eof_ns;
        process->pidfd_ns = now_ns + NS_PER_MS + draw(random_state, 200 * NS_PER_MS);
        process->unlisted_ns = now_ns + draw(random_state, 200 * NS_PER_MS);
    } else if (process->child) {
        uint64_t life_ns =
            draw(random_state, random_next(random_state) % 8 == 0 ? 1000 * NS_PER_S : 5 * NS_PER_S);
        process->child_ns = now_ns + life_ns;
        /* work ends with the child's descriptors at the latest, and often only then */
        bool lasts = process->mapped && random_next(random_state) % 2 == 0;
        process->work_ns = now_ns + (work_ns < life_ns && !lasts ? work_ns : life_ns);
        process->pidfd_ns = now_ns + draw(random_state, NS_PER_MS);
        if (process->child_has_socket)
            process->eof_ns = process->child_ns;
        /* it stays listed while the child keeps its context, or until shortly after the last write */
        process->unlisted_ns = (random_next(random_state) % 2 == 0 ? process->child_ns : process->work_ns) +
                               draw(random_state, 60 * NS_PER_MS);
    } else {
        process->child_ns = now_ns;
        process->work_ns = now_ns + work_ns;
        process->pidfd_ns = process->work_ns + draw(random_state, 50 * NS_PER_MS);
        process->unlisted_ns = process->work_ns + draw(random_state, 100 * NS_PER_MS);
    }
}

bool kernel_socket_is_over(const struct kernel *kernel, unsigned p, uint64_t now_ns) {
    return !kernel->processes[p].alive && kernel->processes[p].eof_ns <= now_ns;
}

bool kernel_process_is_over(const struct kernel *kernel, unsigned p, uint64_t now_ns) {
    return !kernel->processes[p].alive && kernel->processes[p].pidfd_ns <= now_ns;
}

bool kernel_work_is_over(const struct kernel *kernel, unsigned p, uint64_t now_ns) {
    return !kernel->processes[p].alive && kernel->processes[p].work_ns <= now_ns;
}

bool kernel_lists(const struct kernel *kernel, unsigned p, uint64_t now_ns) {
    const struct process *process = &kernel->processes[p];
    return kernel->list != KERNEL_LIST_NONE && process->used && process->mapped && !process->foreign &&
           (process->alive || process->unlisted_ns > now_ns);
}

bool kernel_child_lives(const struct kernel *kernel, unsigned p, uint64_t now_ns) {
    const struct process *process = &kernel->processes[p];
    return process->child && (process->alive || process->child_ns > now_ns);
}

void kernel_clean(struct kernel *kernel, uint64_t now_ns) {
    for (unsigned p = 0; p < SIM_PROCESSES; p++) {
        struct process *process = &kernel->processes[p];
        if (process->used && !process->alive && process->sessions == 0 && process->work_ns <= now_ns &&
            process->child_ns <= now_ns && process->unlisted_ns <= now_ns)
            memset(process, 0, sizeof *process);
    }
}

static void sooner(uint64_t *next_ns, uint64_t event_ns, uint64_t now_ns) {
    if (event_ns > now_ns && event_ns < *next_ns)
        *next_ns = event_ns;
}

uint64_t kernel_next_ns(const struct kernel *kernel, uint64_t now_ns) {
    uint64_t next_ns = NS_FOREVER;
    for (unsigned p = 0; p < SIM_PROCESSES; p++) {
        const struct process *process = &kernel->processes[p];
        if (!process->used || process->alive)
            continue;
        sooner(&next_ns, process->eof_ns, now_ns);
        sooner(&next_ns, process->pidfd_ns, now_ns);
        sooner(&next_ns, process->work_ns, now_ns);
        sooner(&next_ns, process->unlisted_ns, now_ns);
        sooner(&next_ns, process->child_ns, now_ns);
    }
    return next_ns;
}
