/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mappings of all clients: an address maps a segment, from one of the driver's calls or a mapping of the
 * system on. Nothing is unmapped that enqueued work uses.
 */
#include <string.h>
#include <sys/stat.h>

#include "tests/joint/gpu.h"

#define MAPPINGS_MAX  4096u
#define FIRST_ADDRESS ((uintptr_t)1 << 45)

static struct mapping {
    const char *address;
    uint64_t size_bytes;
    unsigned segment, client, n_opened;
    bool has_access, is_ipc;
} mappings[MAPPINGS_MAX];
static unsigned n_mappings;
static uintptr_t next_address = FIRST_ADDRESS;

bool parts_meet(const struct parts *a, const struct parts *b) {
    for (unsigned i = 0; i < a->count; i++)
        for (unsigned j = 0; j < b->count; j++) {
            const struct part *x = &a->list[i], *y = &b->list[j];
            if (x->segment == y->segment && x->offset_bytes < y->offset_bytes + y->size_bytes &&
                y->offset_bytes < x->offset_bytes + x->size_bytes)
                return true;
        }
    return false;
}

bool parts_are_same(const struct parts *a, const struct parts *b) {
    for (unsigned i = 0; i < a->count && i < b->count; i++)
        if (a->list[i].segment != b->list[i].segment || a->list[i].offset_bytes != b->list[i].offset_bytes ||
            a->list[i].size_bytes != b->list[i].size_bytes)
            return false;
    return a->count == b->count;
}

static struct mapping *mapping_at(const char *address) {
    for (unsigned i = 0; i < n_mappings; i++)
        if (address >= mappings[i].address && address < mappings[i].address + mappings[i].size_bytes)
            return &mappings[i];
    return NULL;
}

/* A part that continues the last one is none of its own. */
static void add_part(struct parts *parts, struct part part) {
    struct part *last = parts->count > 0 ? &parts->list[parts->count - 1] : NULL;

    if (last != NULL && last->segment == part.segment &&
        last->offset_bytes + last->size_bytes == part.offset_bytes) {
        last->size_bytes += part.size_bytes;
        return;
    }
    must(parts->count < JOINT_PARTS, "the simulator has no room for a part");
    parts->list[parts->count++] = part;
}

bool gpu_resolve(const void *memory, uint64_t size_bytes, struct parts *ret_parts) {
    const char *address = memory;

    ret_parts->count = 0;
    while (size_bytes > 0) {
        const struct mapping *mapping = mapping_at(address);
        if (mapping == NULL || !mapping->has_access)
            return false;
        uint64_t offset = (uint64_t)(address - mapping->address), left = mapping->size_bytes - offset;
        uint64_t taken = left < size_bytes ? left : size_bytes;
        add_part(ret_parts, (struct part){mapping->segment, offset, taken});
        address += taken;
        size_bytes -= taken;
    }
    return true;
}

static void map(const void *address, uint64_t size_bytes, unsigned segment, bool has_access, bool is_ipc) {
    for (unsigned i = 0; i < n_mappings; i++)
        must((const char *)address >= mappings[i].address + mappings[i].size_bytes ||
                 mappings[i].address >= (const char *)address + size_bytes,
             "an address maps one segment");
    must(n_mappings < MAPPINGS_MAX, "the simulator has no room for a mapping");
    mappings[n_mappings++] = (struct mapping){.address = address,
                                              .size_bytes = size_bytes,
                                              .segment = segment,
                                              .client = baton_client(),
                                              .n_opened = 1,
                                              .has_access = has_access,
                                              .is_ipc = is_ipc};
    world.tally->segments_mapped++;
}

void gpu_map(void *address, uint64_t size_bytes, unsigned segment) {
    map(address, size_bytes, segment, true, false);
}

void gpu_unmap(void *address, uint64_t size_bytes, bool is_whole) {
    const char *start = address, *end = start + size_bytes;

    for (unsigned i = 0; i < n_mappings;) {
        struct mapping *mapping = &mappings[i];
        if (mapping->address >= end || mapping->address + mapping->size_bytes <= start) {
            i++;
            continue;
        }
        must(!is_whole || (mapping->address >= start && mapping->address + mapping->size_bytes <= end),
             "a handle is unmapped whole");
        streams_check_unused(mapping->address, mapping->size_bytes);
        *mapping = mappings[--n_mappings];
        world.tally->segments_unmapped++;
    }
}

bool gpu_has_mapped(unsigned client, unsigned segment) {
    for (unsigned i = 0; i < n_mappings; i++)
        if (mappings[i].client == client && mappings[i].segment == segment)
            return true;
    return false;
}

void mappings_forget(unsigned client) {
    for (unsigned i = 0; i < n_mappings;)
        if (mappings[i].client == client)
            mappings[i] = mappings[--n_mappings];
        else
            i++;
}

/* --- calls of the table --- */

static int ipc_open(unsigned device, const struct gpu_ipc_handle *handle, void **ret_memory) {
    unsigned segment;

    (void)device;
    baton_may_pass();
    if (gpu_fails())
        return GPU_ERROR_MAP_BUFFER_OBJECT_FAILED;
    memcpy(&segment, handle->bytes, sizeof segment);
    must(segment < world.n_segments && !world.segments[segment].is_retired,
         "a handle is opened that names memory");
    for (unsigned i = 0; i < n_mappings; i++)
        if (mappings[i].is_ipc && mappings[i].client == baton_client() && mappings[i].segment == segment) {
            mappings[i].n_opened++;
            *ret_memory = (void *)(uintptr_t)mappings[i].address;
            return 0;
        }
    *ret_memory = (void *)next_address;
    map(*ret_memory, world.segments[segment].size_bytes, segment, true, true);
    next_address += world.segments[segment].size_bytes + 2 * MIB;
    return 0;
}

struct range {
    const char *address;
    uint64_t size_bytes;
};

static bool has_no_work(void *argument) {
    const struct range *range = argument;
    return !streams_have_work_at(range->address, range->size_bytes);
}

/* Closing a legacy handle and unregistering host memory wait for the work there. */
static void wait_for_work(const char *address, uint64_t size_bytes) {
    struct range range = {address, size_bytes};
    baton_wait(has_no_work, &range, NS_FOREVER);
}

static int ipc_close(unsigned device, void *memory) {
    (void)device;
    baton_may_pass();
    struct mapping *mapping = mapping_at(memory);
    must(mapping != NULL && mapping->is_ipc, "a mapping is closed that there is");
    if (--mapping->n_opened > 0)
        return 0;
    uint64_t size_bytes = mapping->size_bytes;
    wait_for_work(memory, size_bytes);
    gpu_unmap(memory, size_bytes, true);
    return 0;
}

static int vmm_import(unsigned device, int fd, uint64_t *ret_handle) {
    struct stat status;

    (void)device;
    baton_may_pass();
    if (gpu_fails())
        return GPU_ERROR_UNKNOWN;
    int segment = fstat(fd, &status) == 0 ? daemon_find_inode(status.st_ino) : -1;
    must(segment >= 0, "a descriptor is imported that names memory");
    *ret_handle = (uint64_t)segment + 1;
    return 0;
}

static int vmm_release(unsigned device, uint64_t handle) {
    (void)device, (void)handle;
    return 0;
}

static int address_reserve(unsigned device, uint64_t size_bytes, void **ret_address) {
    (void)device;
    baton_may_pass();
    if (gpu_fails())
        return GPU_ERROR_MEMORY_ALLOCATION;
    *ret_address = (void *)next_address;
    next_address += (size_bytes + 4 * MIB) / (2 * MIB) * (2 * MIB);
    return 0;
}

static int address_free(unsigned device, void *address, uint64_t size_bytes) {
    (void)device;
    for (unsigned i = 0; i < n_mappings; i++)
        must(mappings[i].address >= (const char *)address + size_bytes ||
                 mappings[i].address + mappings[i].size_bytes <= (const char *)address,
             "addresses are freed that map nothing");
    return 0;
}

static int vmm_map(unsigned device, void *address, uint64_t size_bytes, uint64_t handle) {
    (void)device;
    baton_may_pass();
    if (gpu_fails())
        return GPU_ERROR_UNKNOWN;
    must(size_bytes == world.segments[handle - 1].size_bytes, "a handle is mapped whole");
    map(address, size_bytes, (unsigned)handle - 1, false, false);
    return 0;
}

static int vmm_unmap(unsigned device, void *address, uint64_t size_bytes) {
    (void)device;
    baton_may_pass();
    must(mapping_at(address) != NULL, "a mapping is taken away that there is");
    gpu_unmap(address, size_bytes, true);
    return 0;
}

static int vmm_set_access(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access) {
    (void)device;
    const char *at = address, *end = at + size_bytes;
    while (at < end) {
        struct mapping *mapping = mapping_at(at);
        must(mapping != NULL, "access is given to what is mapped");
        mapping->has_access = access != GPU_ACCESS_NONE;
        at = mapping->address + mapping->size_bytes;
    }
    return 0;
}

static int host_register(void *memory, uint64_t size_bytes) {
    (void)memory, (void)size_bytes;
    baton_may_pass();
    return gpu_fails() ? GPU_ERROR_UNKNOWN : 0;
}

static int host_unregister(void *memory) {
    const struct mapping *mapping = mapping_at(memory);
    if (mapping != NULL)
        wait_for_work(mapping->address, mapping->size_bytes);
    return 0;
}

void mappings_fill_table(struct gpu *table) {
    table->ipc_open = ipc_open;
    table->ipc_close = ipc_close;
    table->vmm_import = vmm_import;
    table->vmm_release = vmm_release;
    table->address_reserve = address_reserve;
    table->address_free = address_free;
    table->vmm_map = vmm_map;
    table->vmm_unmap = vmm_unmap;
    table->vmm_set_access = vmm_set_access;
    table->host_register = host_register;
    table->host_unregister = host_unregister;
}
