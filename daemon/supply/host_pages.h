/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_HOST_PAGES_H
#define DAEMON_SUPPLY_HOST_PAGES_H
/*
 * The pages of a host segment: made, locked and given up on a worker's thread, gigabytes at a time, in a
 * process whose loop must not notice.
 *
 * Two things would let it notice. The processor: pages are made by several threads, so those are nicer than
 * the loop's. And the lock of the process's address space: the kernel holds it for the whole of one
 * madvise, mlock or munmap, and a thread that maps memory meanwhile (malloc for a new session, say) waits, so
 * each call covers little.
 */
#include <stdbool.h>
#include <stdint.h>

struct worker;

/* Of a huge page, and so what a mapping has to be aligned to. */
#define HOST_PAGES_HUGE_BYTES (UINT64_C(2) << 20)

/* [slow] Makes the pages of shared memory exist; they are zero, unless a process has written there. memory
 * and size_bytes: multiples of HOST_PAGES_HUGE_BYTES. With huge, shared memory of small pages is asked to be
 * of huge ones, as far as the kernel has them; *ret_huge_bytes says how much of it became so (0 without huge,
 * and where the kernel cannot tell). worker: told about progress, may be NULL. Returns 0 or a negative errno.
 */
int host_pages_make(void *memory, uint64_t size_bytes, bool huge, struct worker *worker,
                    uint64_t *ret_huge_bytes);

/* [slow] Keeps the pages from being swapped out. Returns 0 or a negative errno; some may be locked then. */
int host_pages_lock(void *memory, uint64_t size_bytes);

/* [slow] munmap. */
void host_pages_unmap(void *memory, uint64_t size_bytes);

#endif
