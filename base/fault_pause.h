/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_FAULT_PAUSE_H
#define BASE_FAULT_PAUSE_H
/*
 * Memory that is taken away, and replaced a moment later, while threads may use it. A thread that uses it in
 * between waits, instead of ending the process by SIGSEGV or SIGBUS.
 *
 * The handlers of the two signals are replaced, and stay so: this is for processes that end. The next fault
 * that is not in the range, or comes later, restores them, and is theirs when it comes again. One range at a
 * time.
 */
#include <stdint.h>

void fault_pause_begin(const void *memory, uint64_t size_bytes);
void fault_pause_end(void);

#endif
