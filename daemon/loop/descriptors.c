/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/descriptors.h"

/* The daemon's own sockets, timers and workers, and about 48 that CUDA opens. */
#define OWN_DESCRIPTORS 80u
/* For the driver's files of each further device: room, not a figure that was measured. */
#define DEVICE_DESCRIPTORS 16u
/* A session's socket, pidfd, timer for idle memory, and page. */
#define SESSION_DESCRIPTORS 4u
/* Sockets that greet or linger take descriptors of this share. */
#define PASSING_SHARE 16u
/* The least that sessions and segments have together, where there are few. */
#define LEAST_SHARE 4u
/* Pages of channels have this share of what sessions leave: with 57,000 descriptors 1,190 channels of one consumer. */
#define CHANNELS_SHARE 8u
/* A page's memfd, and the one that can only be read. */
#define PAGE_DESCRIPTORS 2u
/* Of the store: sockets that listen, the estate, boards of users. */
#define STORED_OWN 16u
/* More is not counted on: the kernel's own default for the most that a process may have. */
#define DESCRIPTORS_MAX (UINT64_C(1) << 20)

uint64_t descriptors_raise(void) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    if (limit.rlim_cur < limit.rlim_max) {
        const struct rlimit most = {limit.rlim_max, limit.rlim_max};
        if (setrlimit(RLIMIT_NOFILE, &most) == 0)
            limit = most;
    }
    return limit.rlim_cur;
}

void descriptors_share(uint64_t descriptors, uint32_t sessions, unsigned n_pools,
                       struct descriptor_shares *ret_shares) {
    uint64_t all = descriptors < DESCRIPTORS_MAX ? descriptors : DESCRIPTORS_MAX;
    uint64_t own = DESCRIPTORS_KEPT + OWN_DESCRIPTORS + (uint64_t)n_pools * DEVICE_DESCRIPTORS;
    uint64_t kept = own + all / PASSING_SHARE;
    uint64_t left = all > kept && all - kept > all / LEAST_SHARE ? all - kept : all / LEAST_SHARE;
    uint64_t most = left / 2 / SESSION_DESCRIPTORS;

    if (sessions > most)
        sessions = most > 0 ? (uint32_t)most : 1;
    left =
        left > sessions * (uint64_t)SESSION_DESCRIPTORS ? left - sessions * (uint64_t)SESSION_DESCRIPTORS : 0;
    uint64_t pages = left / CHANNELS_SHARE / PAGE_DESCRIPTORS;
    left -= pages * PAGE_DESCRIPTORS;
    *ret_shares = (struct descriptor_shares){.sessions = sessions,
                                             .segments = left > 2 ? (uint32_t)left : 2,
                                             .channel_pages = (uint32_t)pages};
}

uint32_t descriptors_share_store(uint64_t limit, uint32_t sessions) {
    uint64_t kept = STORED_OWN + limit / PASSING_SHARE, left = limit > kept ? limit - kept : 0;
    uint64_t wanted = sessions * (uint64_t)SESSION_DESCRIPTORS;

    return (uint32_t)(left - (wanted < left / 2 ? wanted : left / 2));
}

uint32_t descriptors_share_stored_pages(uint32_t left) {
    return left / CHANNELS_SHARE;
}
