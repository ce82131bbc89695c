/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H
/* Times are uint64_t nanoseconds on CLOCK_MONOTONIC. */
#include <stdint.h>
#include <time.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)
#define NS_PER_HOUR (3600 * NS_PER_S)

/* "Never" as a deadline, "for ever" as a timeout. */
#define NS_FOREVER UINT64_MAX

static inline uint64_t clock_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* The deadline that lies a timeout after now; saturates at NS_FOREVER. */
static inline uint64_t clock_deadline_ns(uint64_t now_ns, uint64_t timeout_ns) {
    return timeout_ns > NS_FOREVER - now_ns ? NS_FOREVER : now_ns + timeout_ns;
}

/* The time that is left until a deadline: a timeout. NS_FOREVER for a deadline that never comes. */
static inline uint64_t clock_left_ns(uint64_t deadline_ns) {
    uint64_t now_ns = clock_now_ns();
    return deadline_ns == NS_FOREVER ? NS_FOREVER : deadline_ns > now_ns ? deadline_ns - now_ns : 0;
}

#endif
