/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SIM_KERNEL_H
#define TESTS_SIM_KERNEL_H
/*
 * The kernel and the driver of the simulated machine, as far as the ends of processes go. The order of events
 * is drawn at the moment of a death, within the rules that were measured on an H200 (driver 580):
 *
 * - Without a forked child the process's end waits for the driver, so the pidfd is readable after the last
 * write.
 * - A forked child keeps the driver's descriptors: the pidfd is readable at once, and the dead parent's work
 * goes on, for as long as the child lives if need be. Where the child has the socket too, there is no end of
 * file before its end.
 * - The driver lists a process from its first mapping until after its last write, whether that is before the
 * pidfd is readable or after.
 *
 * A pid may be used again as soon as its process is over, but not by a process of another namespace: an entry
 * of the list with such a pid could be any process.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SIM_PROCESSES 24u

struct process {
    bool used;
    pid_t pid;
    unsigned tenant;
    unsigned sessions; /* that the daemon still knows */
    bool alive;
    bool mapped; /* it has opened a segment, and so has a context on the GPU */
    bool child, child_has_socket;
    bool foreign; /* of another PID namespace: the driver's list never has it */
    bool mps;     /* the list has it, as a client of MPS */
    uint64_t eof_ns, pidfd_ns, work_ns, unlisted_ns, child_ns; /* dead: when each of them is over */
};

enum kernel_list {
    KERNEL_LIST,
    KERNEL_LIST_FLAKY, /* a question now and then fails */
    KERNEL_LIST_NONE,  /* no NVML */
};

enum kernel_proc {
    KERNEL_PROC,
    KERNEL_PROC_HIDDEN,  /* processes are there, and may not be looked into */
    KERNEL_PROC_UNKNOWN, /* it tells nothing */
};

struct kernel {
    enum kernel_list list;
    enum kernel_proc proc;
    unsigned foreign_one_in; /* so many processes are; 0: none */
    struct process processes[SIM_PROCESSES];
    pid_t last_pid;
};

/* A new process of the tenant; SIM_PROCESSES when there is no room. random: a number to draw from. */
unsigned kernel_spawn(struct kernel *kernel, unsigned tenant, uint64_t now_ns, uint64_t random);

/* Kills the process. The following events are drawn from the state. */
void kernel_kill(struct kernel *kernel, unsigned p, uint64_t now_ns, uint64_t *random_state);

/* Whether its socket is at its end, its pidfd readable, its GPU work over for good. */
bool kernel_socket_is_over(const struct kernel *kernel, unsigned p, uint64_t now_ns);
bool kernel_process_is_over(const struct kernel *kernel, unsigned p, uint64_t now_ns);
bool kernel_work_is_over(const struct kernel *kernel, unsigned p, uint64_t now_ns);

/* Whether the driver lists the process now. */
bool kernel_lists(const struct kernel *kernel, unsigned p, uint64_t now_ns);

/* Whether a forked child of it lives, and has the driver's descriptors. */
bool kernel_child_lives(const struct kernel *kernel, unsigned p, uint64_t now_ns);

/* Forgets processes that are over in every respect and that the daemon knows nothing of any more. */
void kernel_clean(struct kernel *kernel, uint64_t now_ns);

/* When the next of these things happens; UINT64_MAX: nothing will. */
uint64_t kernel_next_ns(const struct kernel *kernel, uint64_t now_ns);

#endif
