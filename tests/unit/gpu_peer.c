/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second process for the tests of the driver tables: `gpu_peer cuda|sim`. It takes one command a packet on
 * descriptor 0 and answers "ERROR TEXT". Memory is named by slots, which it hands out; device 0 throughout.
 * It exits, closing nothing, at "exit" or when the test is gone.
 */
#include <inttypes.h>
#include <sys/mman.h>

#include "gpu_peer.h"

#define SLOTS_MAX 64

static const struct gpu *gpu;
static void *slots[SLOTS_MAX];
static unsigned slot_count;
static void *stream;
static uint64_t *shared;

static int slot_add(void *memory, unsigned *ret_slot) {
    if (slot_count == SLOTS_MAX)
        return GPU_ERROR_UNKNOWN;
    slots[slot_count] = memory;
    *ret_slot = slot_count++;
    return 0;
}

/* Copies 8 bytes between a slot and this process's own memory, and waits for it. */
static int word_copy(unsigned slot, uint64_t offset, uint64_t *value, bool is_read) {
    char *memory = (char *)slots[slot] + offset;
    int r = is_read ? gpu->memory_copy(0, value, memory, sizeof(*value), NULL)
                    : gpu->memory_copy(0, memory, value, sizeof(*value), NULL);

    return r != 0 ? r : gpu->stream_synchronize(0, NULL);
}

/* Maps a handle at addresses of its own. host_access: of host code, to host memory. */
static int map_handle(uint64_t handle, uint64_t size_bytes, unsigned access, unsigned host_access,
                      unsigned *ret_slot) {
    void *memory;
    int r = gpu->address_reserve(0, size_bytes, &memory);

    if (r == 0)
        r = gpu->vmm_map(0, memory, size_bytes, handle);
    if (r == 0)
        r = gpu->vmm_set_access(0, memory, size_bytes, (enum gpu_access)access);
    if (r == 0 && host_access != GPU_ACCESS_NONE)
        r = gpu->vmm_host_set_access(0, memory, size_bytes, (enum gpu_access)host_access);
    return r != 0 ? r : slot_add(memory, ret_slot);
}

/* Memory apart from its addresses. Returns -1 for another command. */
static int vmm_command_do(const char *line, int fd, char *text, size_t size) {
    uint64_t handle, bytes;
    unsigned slot, access, host_access = GPU_ACCESS_NONE;
    int r, exported;

    if (strcmp(line, "import") == 0) {
        r = gpu->vmm_import(0, fd, &handle);
        if (r == 0)
            snprintf(text, size, "%" PRIu64, handle);
        return r;
    }
    if (sscanf(line, "map %" SCNu64 " %" SCNu64 " %u %u", &handle, &bytes, &access, &host_access) >= 3) {
        r = map_handle(handle, bytes, access, host_access, &slot);
        if (r == 0)
            snprintf(text, size, "%u", slot);
        return r;
    }
    /* By host code, as "get" and "put" by the device. */
    if (sscanf(line, "load %u %" SCNu64, &slot, &bytes) == 2 && slot < slot_count) {
        snprintf(text, size, "%" PRIu64, *(volatile uint64_t *)((char *)slots[slot] + bytes));
        return 0;
    }
    if (sscanf(line, "store %u %" SCNu64 " %" SCNu64, &slot, &bytes, &handle) == 3 && slot < slot_count) {
        *(volatile uint64_t *)((char *)slots[slot] + bytes) = handle;
        return 0;
    }
    if (sscanf(line, "access %u %" SCNu64 " %u", &slot, &bytes, &access) == 3 && slot < slot_count)
        return gpu->vmm_set_access(0, slots[slot], bytes, (enum gpu_access)access);
    if (sscanf(line, "unmap %u %" SCNu64, &slot, &bytes) == 2 && slot < slot_count)
        return gpu->vmm_unmap(0, slots[slot], bytes);
    if (sscanf(line, "release %" SCNu64, &handle) == 1)
        return gpu->vmm_release(0, handle);
    if (sscanf(line, "offer %" SCNu64, &bytes) ==
        1) { /* the descriptor stays open here, for others to fetch */
        r = gpu->vmm_create(0, bytes, &handle);
        if (r == 0)
            r = gpu->vmm_export(0, handle, &exported);
        if (r == 0)
            snprintf(text, size, "%d", exported);
        return r;
    }
    if (sscanf(line, "export_again %" SCNu64, &handle) == 1)
        return gpu->vmm_export(0, handle, &exported);
    if (sscanf(line, "set %u %u %" SCNu64, &slot, &access, &bytes) == 3 && slot < slot_count)
        return gpu->memory_set(0, slots[slot], (uint8_t)access, bytes, stream);
    return -1;
}

static int command_do(const char *line, int fd, char *text, size_t size) {
    uint64_t offset = 0, value = 0;
    struct gpu_ipc_handle handle;
    struct gpu_device device;
    char word[PEER_LINE_MAX];
    unsigned slot = 0, count;
    void *memory;
    int r;

    if (sscanf(line, "setuid %u", &slot) == 1)
        return setgid(slot) == 0 && setuid(slot) == 0 ? 0 : GPU_ERROR_UNKNOWN;
    if (strcmp(line, "count") == 0) {
        r = gpu->device_count(&count);
        if (r == 0)
            snprintf(text, size, "%u", count);
        return r;
    }
    if (sscanf(line, "describe %u", &slot) == 1) {
        r = gpu->device_describe(slot, &device);
        if (r == 0)
            gpu_uuid_format(&device.uuid, text);
        return r;
    }
    if (sscanf(line, "open %s", word) == 1) {
        if (peer_handle_parse(word, &handle) < 0)
            return GPU_ERROR_UNKNOWN;
        r = gpu->ipc_open(0, &handle, &memory);
        if (r == 0)
            r = slot_add(memory, &slot);
        if (r == 0)
            snprintf(text, size, "%u", slot);
        return r;
    }
    if (sscanf(line, "same %u %" SCNu64, &slot, &value) == 2 && slot < slot_count && value < slot_count)
        return slots[slot] == slots[value] ? 0 : GPU_ERROR_UNKNOWN;
    if (sscanf(line, "close %u", &slot) == 1 && slot < slot_count)
        return gpu->ipc_close(0, slots[slot]);
    if (sscanf(line, "export %u", &slot) == 1 && slot < slot_count) {
        r = gpu->ipc_export(0, slots[slot], &handle);
        if (r == 0)
            peer_handle_text(&handle, text);
        return r;
    }
    if (sscanf(line, "allocate %" SCNu64, &value) == 1) {
        r = gpu->memory_allocate(0, value, &memory);
        if (r == 0)
            r = slot_add(memory, &slot);
        if (r == 0)
            snprintf(text, size, "%u", slot);
        return r;
    }
    if (sscanf(line, "free %u", &slot) == 1 && slot < slot_count)
        return gpu->memory_free(0, slots[slot]);
    if (sscanf(line, "get %u %" SCNu64, &slot, &offset) == 2 && slot < slot_count) {
        r = word_copy(slot, offset, &value, true);
        if (r == 0)
            snprintf(text, size, "%" PRIu64, value);
        return r;
    }
    if (sscanf(line, "put %u %" SCNu64 " %" SCNu64, &slot, &offset, &value) == 3 && slot < slot_count)
        return word_copy(slot, offset, &value, false);
    if (strcmp(line, "register") == 0)
        return gpu->host_register(shared, PEER_SHARED_BYTES);
    if (strcmp(line, "stream") == 0)
        return gpu->stream_create(0, &stream);
    if (strcmp(line, "query") == 0)
        return gpu->stream_query(0, stream);
    if (strcmp(line, "sync") == 0)
        return gpu->stream_synchronize(0, stream);
    if (sscanf(line, "wait64 %" SCNu64 " %" SCNu64, &offset, &value) == 2)
        return gpu->stream_wait64(0, stream, &shared[offset], value);
    if (sscanf(line, "write64 %" SCNu64 " %" SCNu64, &offset, &value) == 2)
        return gpu->stream_write64(0, stream, &shared[offset], value);
    r = vmm_command_do(line, fd, text, size);
    if (r < 0)
        fprintf(stderr, "gpu_peer: no such command: %s\n", line);
    return r;
}

int main(int argc, char **argv) {
    int error = argc != 2 ? -1 : strcmp(argv[1], "cuda") == 0 ? gpu_cuda(&gpu) : gpu_sim(NULL, &gpu);

    shared = mmap(NULL, PEER_SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, PEER_SHARED_FD, 0);
    for (;;) {
        char line[PEER_LINE_MAX], text[PEER_LINE_MAX - 16] = "", answer[PEER_LINE_MAX];
        union {
            struct cmsghdr header;
            char room[CMSG_SPACE(sizeof(int))];
        } control = {0};
        struct iovec part = {.iov_base = line, .iov_len = sizeof(line) - 1};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
        ssize_t length = recvmsg(0, &message, MSG_CMSG_CLOEXEC);
        int r = error, fd = -1;

        if (length > 0 && control.header.cmsg_type == SCM_RIGHTS)
            memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));

        if (length <= 0)
            _exit(0);
        line[length] = '\0';
        if (strcmp(line, "exit") == 0)
            _exit(0);
        /* "start": whether the table came up at all. */
        if (r == 0 && strcmp(line, "start") != 0)
            r = command_do(line, fd, text, sizeof(text));
        close_fd(fd);
        snprintf(answer, sizeof(answer), "%d %s", r, text);
        send(0, answer, strlen(answer), MSG_NOSIGNAL);
    }
}
