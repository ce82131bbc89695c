/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_DIE_HERE_H
#define DAEMON_LOOP_DIE_HERE_H
/* A place at which a daemon may die, so that it makes a difference to its successor: before a store into memory that
 * outlives it, around a message. Nothing happens there, but in the program of tests/system/test_deaths.py. */
#ifdef GPUPOOL_PLANT_DEATHS
void die_here(void);
#else
static inline void die_here(void) {}
#endif

#endif
