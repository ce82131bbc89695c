/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_VM_FLAGS_H
#define TESTS_VM_FLAGS_H
/* The kernel's flags of a mapping of this process. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* Whether the mapping at an address has a flag: "dc": MADV_DONTFORK, "dd": MADV_DONTDUMP. */
static inline bool vm_has_flag(const void *address, const char *flag) {
    char line[512], wanted[8];
    bool inside = false, found = false;
    _cleanup_(fclosep) FILE *file = fopen("/proc/self/smaps", "re");

    if (file == NULL)
        abort();
    snprintf(wanted, sizeof wanted, " %s", flag);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned long low, high;
        if (sscanf(line, "%lx-%lx ", &low, &high) == 2)
            inside = (uintptr_t)address >= low && (uintptr_t)address < high;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0)
            found = strstr(line, wanted) != NULL;
    }
    return found;
}

#endif
