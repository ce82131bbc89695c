/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_PLACE_H
#define CLIENT_CTL_PLACE_H
/*
 * The place that a process runs in, by its control group: a container, a job, or a unit of systemd. The
 * daemon does not tell it: this program looks, where it sees the process.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PLACE_SIZE 80u

/* Finds the place in the text of a file /proc/PID/cgroup: "docker 0123456789ab", "slurm job 42",
 * "trainer.service". Returns false where there is none: no group, or a user's session. */
bool place_parse(const char *groups, char place[PLACE_SIZE]);

/* Finds the place of a process of a user that has been connected for so long. Returns false where there is
 * none, or where the process of this number is another one, as in another PID namespace. */
bool place_of_process(uint64_t pid, uint64_t uid, uint64_t connected_ns, char place[PLACE_SIZE]);

#endif
