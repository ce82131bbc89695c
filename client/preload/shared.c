/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/shared.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/preload/lending.h"

/* The contents of the 64 bytes. The text says "gpupool": the driver refuses such a handle. */
struct contents {
    char magic[16];
    uint8_t name[GPUPOOL_TOKEN_NAME_BYTES]; /* of a token without a fence */
    uint64_t size_bytes;
    uint64_t reserved; /* 0 */
};
_Static_assert(sizeof(struct contents) == CUDA_IPC_HANDLE_BYTES, "it fills a handle");

static const char magic[16] = "gpupool handle 1";

/* A handle that is open here. */
struct opened {
    struct opened *next;
    struct gpupool_token token;
    struct gpupool_buffer buffer;
    unsigned count;
};

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* held while one is opened: two do not open the same */
static struct opened *all;     /* under the lock */

void shared_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    all = NULL; /* the parent's; a few bytes are lost */
}

/* The driver's number for what gpupool said. */
static int as_cuda(int r) {
    return r == GPUPOOL_E_NO_MEMORY || r == GPUPOOL_E_LIMIT ? CUDA_MEMORY_ALLOCATION : CUDA_INVALID_VALUE;
}

int shared_export(void *memory, struct cuda_ipc_handle *ret_handle) {
    struct contents contents = {0};
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    struct gpupool_client *client = lend_client_if_open();

    int r = lend_find(memory, &buffer);
    if (r != 0)
        return r;
    if (buffer.kind != GPUPOOL_POOL_DEVICE || client == NULL)
        return NOT_OURS;
    bool before = lend_enter();
    r = gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token);
    lend_leave(before);
    if (r < 0) {
        lend_say("no handle for the memory at %p: %s", memory, gpupool_error_text());
        return as_cuda(r);
    }
    memcpy(contents.magic, magic, sizeof magic);
    memcpy(contents.name, token.bytes, sizeof contents.name);
    contents.size_bytes = buffer.size_bytes;
    memcpy(ret_handle->bytes, &contents, sizeof contents);
    return 0;
}

static struct opened *find_token(const struct gpupool_token *token) {
    struct opened *opened = all;
    while (opened != NULL && memcmp(&opened->token, token, sizeof *token) != 0)
        opened = opened->next;
    return opened;
}

/* Under the lock. 0 or what gpupool said. */
static int attach(struct gpupool_client *client, const struct gpupool_token *token, void **ret_memory) {
    struct opened *opened = find_token(token);

    if (opened == NULL) {
        opened = calloc(1, sizeof *opened);
        if (opened == NULL)
            return GPUPOOL_E_NO_MEMORY;
        int r = gpupool_attach(client, token, GPUPOOL_NO_STREAM, 0, &opened->buffer);
        if (r < 0) {
            free(opened);
            return r;
        }
        opened->token = *token;
        opened->next = all;
        all = opened;
    }
    opened->count++;
    *ret_memory = opened->buffer.data;
    return 0;
}

int shared_open(int device, const struct cuda_ipc_handle *handle, void **ret_memory) {
    struct contents contents;
    struct gpupool_token token = {0};
    int r;

    memcpy(&contents, handle->bytes, sizeof contents);
    if (memcmp(contents.magic, magic, sizeof magic) != 0 || contents.reserved != 0)
        return NOT_OURS;
    memcpy(token.bytes, contents.name, sizeof contents.name);
    lend_note_device(device);
    bool before = lend_enter();
    struct gpupool_client *client = lend_client();
    if (client != NULL) {
        pthread_mutex_lock(&lock);
        r = attach(client, &token, ret_memory);
        pthread_mutex_unlock(&lock);
    }
    lend_leave(before);
    if (client == NULL)
        return NOT_OURS; /* the driver refuses it */
    if (r == 0)
        return 0;
    lend_say("a handle cannot be opened: %s", gpupool_error_text());
    return as_cuda(r);
}

/* Where the entry of a pointer hangs; *link is NULL: there is none. Under the lock. */
static struct opened **find_memory(const void *memory) {
    struct opened **link = &all;
    while (*link != NULL && (*link)->buffer.data != memory)
        link = &(*link)->next;
    return link;
}

int shared_close(const void *memory) {
    struct gpupool_buffer buffer = {0};
    struct opened *last = NULL;

    pthread_mutex_lock(&lock);
    struct opened *found = *find_memory(memory);
    if (found != NULL)
        buffer = found->buffer;
    pthread_mutex_unlock(&lock);
    if (found == NULL)
        return NOT_OURS;
    int r = lend_wait(&buffer);
    if (r != 0)
        return r;
    pthread_mutex_lock(&lock);
    struct opened **link = find_memory(memory);
    if (*link == NULL) {
        pthread_mutex_unlock(&lock);
        return CUDA_INVALID_VALUE; /* another thread closed it meanwhile */
    }
    if (--(*link)->count == 0) {
        last = *link;
        *link = last->next;
    }
    pthread_mutex_unlock(&lock);
    struct gpupool_client *client = lend_client_if_open();
    if (last != NULL && client != NULL) {
        bool before = lend_enter();
        if (gpupool_release(client, &last->buffer, GPUPOOL_NO_STREAM) < 0)
            lend_say("shared memory at %p is kept: %s", memory, gpupool_error_text());
        lend_leave(before);
    }
    free(last);
    return 0;
}
