/* SPDX-License-Identifier: Apache-2.0 */
/* No GPU: a kernel of 100 ms is a pause. For trying busy.c itself. */
#include "tests/bench/busy.h"

#include <time.h>

static unsigned pause_ms;

int busy_begin(void) {
    return 0;
}

int busy_spin(unsigned milliseconds) {
    pause_ms = milliseconds;
    return 0;
}

int busy_launch(void) {
    return 0;
}

int busy_wait(void) {
    return nanosleep(&(struct timespec){.tv_nsec = (long)pause_ms * 1000000}, NULL);
}
