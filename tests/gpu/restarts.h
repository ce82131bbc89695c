/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_RESTARTS_H
#define TESTS_GPU_RESTARTS_H
/*
 * The common part of the program restarts: restarts.c starts the processes and kills the daemon, which restarts_daemon.c
 * starts and asks. restarts_parts.c has the code of workers and guests, restarts_holder.c that of the holder,
 * kills_parts.c that of victims.
 *
 * Workers stand in a ring: each one passes tokens to the next through a socket, and hears what became of them.
 * Guests share buffers with workers, by tokens on a table that all have mapped, and are killed at any moment.
 */
#include <stdatomic.h>
#include <stdint.h>

#include <gpupool/gpupool.h>

#define RESTARTS_FOREIGN 3 /* exit status: a buffer was written by others */
/* A request waits no longer for room, and its worker gives something back then. */
#define RESTARTS_WAIT_NS UINT64_C(1000000000)

/* Descriptors that a part inherits. */
#define RESTARTS_FROM_FD  10 /* from the worker before */
#define RESTARTS_TO_FD    11 /* to the next worker */
#define RESTARTS_TABLE_FD 12

/* A token that lies open. A writer that is killed leaves an odd version: the entry serves no more. */
struct restarts_entry {
    _Atomic uint32_t version;
    uint8_t byte;    /* what the buffer is full of */
    uint8_t is_sure; /* it is, also if the guest is killed */
    struct gpupool_token token;
};

#define RESTARTS_ENTRIES 64u
struct restarts_table {
    struct restarts_entry of_workers[RESTARTS_ENTRIES], of_guests[RESTARTS_ENTRIES];
};

/* Which pools a part takes memory of. */
enum restarts_pools {
    RESTARTS_BOTH,
    RESTARTS_DEVICE,
    RESTARTS_HOST,
};

/* The figures that a worker writes on its standard output at its end. */
struct restarts_figures {
    uint64_t calls, checked, passed_on, refused; /* refused: for want of room, after a wait */
    uint64_t late;            /* requests without an answer a second after their wait was over */
    uint64_t longest_ns;      /* of a call that does not wait for room */
    uint64_t longest_wait_ns; /* of one that does */
    char longest[32], longest_wait[32];
};

/* Until SIGTERM. */
int restarts_worker(uint64_t seed, enum restarts_pools pools);
/* Until it is killed. */
int restarts_guest(uint64_t seed, enum restarts_pools pools);
/* Has so much device memory until SIGTERM; says by a byte on its standard output when it has it all. */
int restarts_holder(uint64_t gib);

#endif
