/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_NUMA_H
#define DAEMON_SUPPLY_NUMA_H
/* The machine's NUMA nodes, as sysfs shows them, and memory bound to one of them. */
#include <stddef.h>
#include <stdint.h>

#define NUMA_NODES_MAX 64u /* bits of one word of mbind's mask; the largest x86 servers have 32 */

/* Writes the numbers of the nodes that have memory. A kernel without NUMA has the one node 0. Returns how
 * many. */
unsigned numa_nodes(int nodes[NUMA_NODES_MAX]);

/* The node's memory, and what of it could be had now, page cache included. Returns 0 or a negative errno. */
int numa_memory(int node, uint64_t *ret_total_bytes, uint64_t *ret_available_bytes);

/* Free 2 MiB huge pages of the node; 0 where there are none. */
uint64_t numa_free_huge_pages(int node);

/* Asks for pages of a fresh mapping to come from the node when they are touched; a preference, not a must: a
 * full node is to be slow, not fatal. Returns 0 or a negative errno. */
int numa_prefer(void *memory, size_t size_bytes, int node);

#endif
