/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supply/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"

unsigned numa_nodes(int nodes[NUMA_NODES_MAX]) {
    unsigned count = 0;
    _cleanup_(fclosep) FILE *file = fopen("/sys/devices/system/node/has_memory", "re");
    char text[512];

    if (file != NULL && fgets(text, sizeof text, file) != NULL)
        for (char *save = NULL, *range = strtok_r(text, ",\n", &save); range != NULL;
             range = strtok_r(NULL, ",\n", &save)) {
            int first, last;
            int n = sscanf(range, "%d-%d", &first, &last);
            if (n < 1)
                continue;
            for (int node = first; node <= (n == 2 ? last : first) && count < NUMA_NODES_MAX; node++)
                if (node >= 0 && node < (int)NUMA_NODES_MAX)
                    nodes[count++] = node;
        }
    if (count == 0)
        nodes[count++] = 0;
    return count;
}

/* One "Node 0 MemFree:  123 kB" or "MemAvailable:  123 kB" of a meminfo file. */
static int read_meminfo(const char *path, const char *key, uint64_t *ret_bytes) {
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    char line[256];

    if (file == NULL)
        return -errno;
    while (fgets(line, sizeof line, file) != NULL) {
        char *found = strstr(line, key);
        if (found != NULL && found[strlen(key)] == ':') {
            *ret_bytes = strtoull(found + strlen(key) + 1, NULL, 10) * KIB;
            return 0;
        }
    }
    return -ENODATA;
}

int numa_memory(int node, uint64_t *ret_total_bytes, uint64_t *ret_available_bytes) {
    char path[64];
    uint64_t total, available, machine_available, cache;

    int r = read_meminfo("/proc/meminfo", "MemAvailable", &machine_available);
    if (r < 0)
        return r;
    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/meminfo", node);
    /* A machine with one node is that node; some hypervisors that add memory as it is used account for it in
     * /proc/meminfo alone. */
    int nodes[NUMA_NODES_MAX];
    r = numa_nodes(nodes) == 1 ? -ENODATA : read_meminfo(path, "MemTotal", &total);
    if (r < 0) {
        r = read_meminfo("/proc/meminfo", "MemTotal", &total);
        if (r < 0)
            return r;
        available = machine_available;
    } else {
        r = read_meminfo(path, "MemFree", &available);
        if (r < 0)
            return r;
        if (read_meminfo(path, "FilePages", &cache) == 0)
            available += cache;
        if (available > machine_available)
            available = machine_available;
    }
    *ret_total_bytes = total;
    *ret_available_bytes = available;
    return 0;
}

uint64_t numa_free_huge_pages(int node) {
    char path[128];
    unsigned long long count = 0;

    snprintf(path, sizeof path, "/sys/devices/system/node/node%d/hugepages/hugepages-2048kB/free_hugepages",
             node);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    if (file == NULL || fscanf(file, "%llu", &count) != 1)
        return 0;
    return count;
}

int numa_prefer(void *memory, size_t size_bytes, int node) {
    unsigned long mask = 1ul << node;
    /* The system call itself: libnuma would be a dependency for one call. maxnode counts one bit too many by
     * habit. */
    if (syscall(SYS_mbind, memory, size_bytes, MPOL_PREFERRED, &mask, NUMA_NODES_MAX + 1, 0) < 0)
        return -errno;
    return 0;
}
