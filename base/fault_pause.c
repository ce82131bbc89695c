/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fault_pause.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "base/clock.h"

static const int signals[] = {SIGSEGV, SIGBUS};
#define N_SIGNALS (sizeof signals / sizeof signals[0])

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* from begin to end */
static struct sigaction before[N_SIGNALS];
static _Atomic(uintptr_t) first;
static _Atomic uint64_t size;
static atomic_bool is_away;

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    if ((uintptr_t)info->si_addr - atomic_load(&first) < atomic_load(&size) && atomic_load(&is_away)) {
        while (atomic_load(&is_away))
            nanosleep(&(struct timespec){.tv_nsec = (long)(NS_PER_MS / 10)}, NULL);
        return; /* the access is tried again */
    }
    /* As here; and if it is no late fault of the range, the one before gets it. */
    for (unsigned i = 0; i < N_SIGNALS; i++)
        if (signals[i] == number)
            sigaction(number, &before[i], NULL);
}

void fault_pause_begin(const void *memory, uint64_t size_bytes) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};

    pthread_mutex_lock(&lock);
    sigemptyset(&action.sa_mask);
    atomic_store(&first, (uintptr_t)memory);
    atomic_store(&size, size_bytes);
    atomic_store(&is_away, true);
    for (unsigned i = 0; i < N_SIGNALS; i++) {
        struct sigaction found;

        sigaction(signals[i], &action, &found);
        if (found.sa_sigaction != on_fault)
            before[i] = found;
    }
}

/* The handlers stay: the kernel may be about to deliver a fault. */
void fault_pause_end(void) {
    atomic_store(&is_away, false);
    pthread_mutex_unlock(&lock);
}
