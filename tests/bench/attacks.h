/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BENCH_ATTACKS_H
#define TESTS_BENCH_ATTACKS_H
/*
 * Attacks of hostile clients, each in a process of its own until it is killed. An attack connects to the
 * daemon that GPUPOOL_SOCKET and GPUPOOL_ADMIN_SOCKET name.
 */

#define ATTACKS 15u

struct attack {
    const char *name;
    void (*run)(void); /* returns where it cannot be tried here */
};

extern const struct attack attacks[ATTACKS];

#endif
