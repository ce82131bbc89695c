/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/report.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/units.h"

#define TEXT_SIZE 8192u

/* For the shares: where the memory of a row lies. */
enum place {
    NOWHERE, /* it is not memory that was allocated */
    DEVICE,
    HOST,
    PLACES,
};

static const struct {
    const char *calls, *reason; /* reason NULL: the pool lent it */
    enum place place;
} words[REPORT_ROWS] = {
    [REPORT_LENT_DEVICE] = {"device memory", NULL, DEVICE},
    [REPORT_LENT_HOST] = {"pinned memory", NULL, HOST},
    [REPORT_LENT_IN_ORDER] = {"device memory in stream order", NULL, DEVICE},
    [REPORT_REFUSED] = {"any", "pool refused: an error", NOWHERE},
    [REPORT_NO_POOL] = {"device memory", "no daemon, or no such pool", DEVICE},
    [REPORT_NO_HOST_POOL] = {"pinned memory", "no daemon, or no such pool", HOST},
    [REPORT_CONTEXT] = {"cuMemAlloc and its like", "not the primary context", DEVICE},
    [REPORT_HOST_CONTEXT] = {"cuMemHostAlloc and its like", "not the primary context", HOST},
    [REPORT_CAPTURE] = {"cuMemAllocAsync and its like", "during a capture", DEVICE},
    [REPORT_OWN_POOL] = {"cuMemAllocAsync and its like", "its own memory pool", DEVICE},
    [REPORT_POOL_MADE] = {"cuMemPoolCreate", "its own memory pool", NOWHERE},
    [REPORT_MANAGED] = {"cuMemAllocManaged", "managed memory", DEVICE},
    [REPORT_VMM] = {"cuMemCreate", "VMM: expandable segments", DEVICE},
    [REPORT_VMM_HOST] = {"cuMemCreate", "VMM, host memory", HOST},
    [REPORT_ARRAY] = {"cuArrayCreate and its like", "array", DEVICE},
    [REPORT_WRITE_COMBINED] = {"cuMemHostAlloc", "WriteCombined", HOST},
    [REPORT_REGISTERED] = {"cuMemHostRegister", "registered memory of the program", NOWHERE},
};

struct counter {
    _Atomic uint64_t calls, bytes, largest_bytes;
};

static struct counter counters[REPORT_ROWS];
static _Atomic uint64_t lent_bytes, peak_bytes;
static const char *target;  /* "-" or a path, which the environment owns; NULL: no report. Written once */
static _Atomic pid_t owner; /* whose report it is: a child by vfork() runs in the same memory */
static atomic_bool is_written;

/* Async-signal-safe, as _exit() is. */
static int (*real_exit)(int);
__attribute__((visibility("default"), noreturn)) void _exit(int code);
__attribute__((visibility("default"), noreturn)) void _Exit(int code);

bool report_is_asked(void) {
    return target != NULL;
}

static void raise_to(_Atomic uint64_t *most, uint64_t value) {
    uint64_t before = atomic_load_explicit(most, memory_order_relaxed);

    while (before < value && !atomic_compare_exchange_weak_explicit(
                                 most, &before, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

void report_add(enum report_row row, uint64_t size_bytes) {
    if (target == NULL)
        return;
    struct counter *counter = &counters[row];
    atomic_fetch_add_explicit(&counter->calls, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&counter->bytes, size_bytes, memory_order_relaxed);
    raise_to(&counter->largest_bytes, size_bytes);
}

void report_lent(uint64_t size_bytes) {
    if (target == NULL)
        return;
    raise_to(&peak_bytes,
             atomic_fetch_add_explicit(&lent_bytes, size_bytes, memory_order_relaxed) + size_bytes);
}

void report_returned(uint64_t size_bytes) {
    if (target == NULL)
        return;
    atomic_fetch_sub_explicit(&lent_bytes, size_bytes, memory_order_relaxed);
}

/* --- the text --- */

struct text {
    char bytes[TEXT_SIZE];
    size_t size;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(text->bytes + text->size, sizeof text->bytes - text->size, format, arguments);
    va_end(arguments);
    if (length > 0) {
        text->size += (size_t)length;
        if (text->size >= sizeof text->bytes)
            text->size = sizeof text->bytes - 1;
    }
}

static uint64_t bytes_of(unsigned row) {
    return atomic_load_explicit(&counters[row].bytes, memory_order_relaxed);
}

/* "100.0 % of the device memory": of the bytes that were asked for and given, by the pool or by CUDA. */
static void add_share(struct text *text, enum place place, const char *what) {
    uint64_t lent = 0, all = 0;

    for (unsigned row = 0; row < REPORT_ROWS; row++)
        if (words[row].place == place) {
            all += bytes_of(row);
            lent += words[row].reason == NULL ? bytes_of(row) : 0;
        }
    if (all > 0)
        add(text, ", %.1f %% of the %s", 100.0 * (double)lent / (double)all, what);
}

static void add_rows(struct text *text, bool is_lent) {
    bool is_headed = false;

    for (unsigned row = 0; row < REPORT_ROWS; row++) {
        const struct counter *counter = &counters[row];
        uint64_t calls = atomic_load_explicit(&counter->calls, memory_order_relaxed);
        if (calls == 0 || (words[row].reason == NULL) != is_lent)
            continue;
        if (!is_headed)
            add(text, "  %-30s %12s %12s %12s  %s\n", is_lent ? "FROM THE POOLS" : "NOT FROM THE POOLS",
                "CALLS", "BYTES", "LARGEST", is_lent ? "" : "WHY");
        is_headed = true;
        add(text, "  %-30s %12llu %12s %12s  %s\n", words[row].calls, (unsigned long long)calls,
            BYTES_TEXT(bytes_of(row)),
            BYTES_TEXT(atomic_load_explicit(&counter->largest_bytes, memory_order_relaxed)),
            is_lent ? "" : words[row].reason);
    }
}

static bool has_counted(void) {
    for (unsigned row = 0; row < REPORT_ROWS; row++)
        if (atomic_load_explicit(&counters[row].calls, memory_order_relaxed) > 0)
            return true;
    return false;
}

static void put(const char *text, size_t size) {
    int file = strcmp(target, "-") == 0
                   ? STDERR_FILENO
                   : open(target, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    ssize_t written = -1;

    if (file >= 0)
        written = write(file, text, size);
    if (file >= 0 && file != STDERR_FILENO)
        close(file);
    if (written < 0 && file != STDERR_FILENO) {
        char line[512];
        int length = snprintf(line, sizeof line,
                              "gpupool (pid %d): the report cannot be written to %.300s: errno %d\n",
                              (int)getpid(), target, errno);
        written = write(STDERR_FILENO, line, (size_t)length);
    }
}

/* Writes the report, if this is the process that counted and it has not been written. */
static void finish(void) {
    struct text text = {.size = 0};

    if (target == NULL || getpid() != atomic_load(&owner) || !has_counted() ||
        atomic_exchange(&is_written, true))
        return;
    add(&text, "gpupool report: %s (pid %d): at most %s on loan", program_invocation_short_name,
        (int)getpid(), BYTES_TEXT(atomic_load(&peak_bytes)));
    add_share(&text, DEVICE, "device memory");
    add_share(&text, HOST, "pinned memory");
    add(&text, "%s\n", " from the pools");
    add_rows(&text, true);
    add_rows(&text, false);
    put(text.bytes, text.size);
}

/* --- the life of the process --- */

static void after_fork_in_child(void) {
    for (unsigned row = 0; row < REPORT_ROWS; row++) {
        atomic_store(&counters[row].calls, 0);
        atomic_store(&counters[row].bytes, 0);
        atomic_store(&counters[row].largest_bytes, 0);
    }
    atomic_store(&lent_bytes, 0);
    atomic_store(&peak_bytes, 0);
    atomic_store(&is_written, false);
    atomic_store(&owner, getpid());
}

__attribute__((constructor)) static void begin(void) {
    const char *asked = getenv(REPORT_VARIABLE);

    *(void **)&real_exit = dlsym(RTLD_NEXT, "_exit");
    if (asked == NULL || (strcmp(asked, "-") != 0 && asked[0] != '/'))
        return;
    char *copy = strdup(asked); /* the program may change its environment */
    if (copy == NULL || pthread_atfork(NULL, NULL, after_fork_in_child) != 0) {
        free(copy);
        return;
    }
    atomic_store(&owner, getpid());
    target = copy;
}

__attribute__((destructor)) static void end(void) {
    finish();
}

/* Python's multiprocessing ends its children by it, which skips destructors. */
void _exit(int code) {
    finish();
    if (real_exit != NULL)
        real_exit(code);
    for (;;)
        syscall(SYS_exit_group, code);
}

void _Exit(int code) {
    _exit(code);
}
