/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/fork_guard.h"

#include <sys/mman.h>
#include <unistd.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"

/* The kernel wipes whole pages; any multiple of the page size will do, and mmap rounds up to one. */
#define GUARD_BYTES 1u

static unsigned char no_page; /* says of no process that it is the one */

void fork_guard_init(struct fork_guard *guard) {
    guard->owner = getpid();
    guard->page = &no_page;
    guard->is_wiped = false;
    void *page = mmap(NULL, GUARD_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return;
    if (madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK) < 0) {
        munmap(page, GUARD_BYTES);
        return;
    }
    guard->page = page;
    guard->page[0] = 1;
    guard->is_wiped = true;
}

void fork_guard_deinit(struct fork_guard *guard) {
    if (guard->is_wiped)
        munmap((void *)guard->page, GUARD_BYTES);
    guard->page = &no_page;
    guard->is_wiped = false;
}

bool fork_guard_is_another_process(const struct fork_guard *guard) {
    return getpid() != guard->owner;
}

int fork_guard_check(const struct fork_guard *guard) {
    if (!fork_guard_is_child(guard))
        return 0;
    return error_set(GPUPOOL_E_FORKED,
                     "this client belongs to the parent of this process (pid %d): "
                     "open a client after the fork",
                     (int)guard->owner);
}
