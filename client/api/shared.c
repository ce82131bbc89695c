/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/shared.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "client/api/client.h"
#include "client/session/error.h"

/* A token's bytes. It never leaves the machine. */
struct token_bytes {
    struct proto_token name;
    uint32_t slot, word;
    uint64_t value;
    uint64_t session;
    uint64_t reserved; /* 0 */
};
_Static_assert(sizeof(struct token_bytes) == sizeof((struct gpupool_token){0}.bytes), "a token's size");

void token_make(const struct proto_token *name, const struct shared_fence *fence,
                struct gpupool_token *ret_token) {
    const struct token_bytes bytes = {.name = *name,
                                      .slot = fence->fence.slot,
                                      .word = fence->fence.word,
                                      .value = fence->fence.value,
                                      .session = fence->session};
    memcpy(ret_token->bytes, &bytes, sizeof bytes);
}

bool token_read(const struct gpupool_token *token, struct proto_token *ret_name,
                struct shared_fence *ret_fence) {
    struct token_bytes bytes;

    memcpy(&bytes, token->bytes, sizeof bytes);
    if (bytes.slot >= PROTO_BOARD_SLOTS || bytes.word >= PROTO_BOARD_WORDS || bytes.reserved != 0)
        return false;
    *ret_name = bytes.name;
    *ret_fence = (struct shared_fence){
        .fence = {.slot = bytes.slot, .word = bytes.word, .value = bytes.value}, .session = bytes.session};
    return true;
}

void shared_forget(struct shared *shared) {
    for (unsigned i = 0; i < SHARED_BUCKETS; i++)
        while (shared->buckets[i] != NULL) {
            struct shared_lease *lease = shared->buckets[i];
            shared->buckets[i] = lease->next;
            free(lease);
        }
    while (shared->awaited != NULL) {
        struct awaited_fence *awaited = shared->awaited;
        shared->awaited = awaited->next;
        free(awaited);
    }
}

void shared_deinit(struct shared *shared) {
    shared_forget(shared);
    pthread_mutex_destroy(&shared->lock);
}

/* Where the lease is linked, or would be. */
static struct shared_lease **find_locked(struct shared *shared, uint64_t lease, uint64_t generation) {
    struct shared_lease **at = &shared->buckets[lease % SHARED_BUCKETS];

    while (*at != NULL && ((*at)->lease != lease || (*at)->generation != generation))
        at = &(*at)->next;
    return at;
}

struct shared_lease *shared_reserve(void) {
    struct shared_lease *lease = calloc(1, sizeof *lease);
    if (lease == NULL)
        (void)error_no_memory();
    return lease;
}

void shared_note(struct shared *shared, struct shared_lease **memory, const struct proto_lease_name *lease,
                 uint64_t size_bytes, const struct proto_token *token) {
    pthread_mutex_lock(&shared->lock);
    struct shared_lease **at = find_locked(shared, lease->lease, lease->generation);
    if (*at == NULL) {
        *at = take_ptr(memory);
        (*at)->lease = lease->lease;
        (*at)->generation = lease->generation;
    }
    if (token != NULL) {
        (*at)->has_token = true;
        (*at)->token = *token;
        (*at)->size_bytes = size_bytes;
    }
    pthread_mutex_unlock(&shared->lock);
}

bool shared_find_token(struct shared *shared, uint64_t lease, uint64_t generation, uint64_t size_bytes,
                       struct proto_token *ret_token) {
    pthread_mutex_lock(&shared->lock);
    const struct shared_lease *found = *find_locked(shared, lease, generation);
    bool has_token = found != NULL && found->has_token && found->size_bytes == size_bytes;
    if (has_token)
        *ret_token = found->token;
    pthread_mutex_unlock(&shared->lock);
    return has_token;
}

bool shared_is_noted(struct shared *shared, uint64_t lease, uint64_t generation) {
    pthread_mutex_lock(&shared->lock);
    bool noted = *find_locked(shared, lease, generation) != NULL;
    pthread_mutex_unlock(&shared->lock);
    return noted;
}

void shared_end(struct shared *shared, uint64_t lease, uint64_t generation) {
    pthread_mutex_lock(&shared->lock);
    struct shared_lease **at = find_locked(shared, lease, generation), *found = *at;
    if (found != NULL)
        *at = found->next;
    pthread_mutex_unlock(&shared->lock);
    free(found);
}

int shared_await(struct shared *shared, const struct shared_fence *fence) {
    struct awaited_fence *awaited = malloc(sizeof *awaited);

    if (awaited == NULL)
        return error_no_memory();
    awaited->fence = *fence;
    pthread_mutex_lock(&shared->lock);
    awaited->next = shared->awaited;
    shared->awaited = awaited;
    pthread_mutex_unlock(&shared->lock);
    return 0;
}

int shared_fail(const struct shared_fence *fence) {
    return error_set(GPUPOOL_E_LOST,
                     "session %" PRIu64
                     " ended before its GPU work on a buffer that it shared was done: what was "
                     "read there since is not what it meant to write. Attach what another process shares",
                     fence->session);
}

int shared_check(struct gpupool_client *client) {
    struct shared *shared = &client->shared;
    struct shared_fence lost = {0};
    bool any_lost = false;

    pthread_mutex_lock(&shared->lock);
    for (struct awaited_fence **at = &shared->awaited; *at != NULL;) {
        struct awaited_fence *awaited = *at;
        enum proto_board_state state = board_state(&client->session, &awaited->fence.fence);
        bool is_lost = state == PROTO_BOARD_LOST;
        if (state == PROTO_BOARD_PENDING || (is_lost && any_lost && awaited->fence.session != lost.session)) {
            at = &awaited->next;
            continue;
        }
        any_lost = any_lost || is_lost;
        lost = is_lost ? awaited->fence : lost;
        *at = awaited->next;
        free(awaited);
    }
    pthread_mutex_unlock(&shared->lock);
    return any_lost ? shared_fail(&lost) : 0;
}
