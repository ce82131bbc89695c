/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/fence.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/session.h"
#include "client/session/wait.h"

/* The page's words are its first part, which is registered as a whole: a page of the kernel's. */
#define WORDS_BYTES (PROTO_PAGE_FENCES * sizeof(uint64_t))

/* A device that failed never writes its words: so often it is asked whether it works. */
#define ASK_NS (100 * NS_PER_MS)

static _Atomic uint64_t last_thread;

uint64_t fence_thread_number(void) {
    struct client_thread *thread = client_thread();

    if (thread->number == 0)
        thread->number = atomic_fetch_add(&last_thread, 1) + 1;
    return thread->number;
}

/* Differs from the names of this process's other clients, and of other processes' clients. Where the kernel
 * has no random bytes yet (early at boot), the clock and the address have to do. */
static uint64_t draw_name(const struct fences *fences) {
    uint64_t name = 0;
    if (getrandom(&name, sizeof name, GRND_NONBLOCK) != sizeof name || name == 0)
        name = (clock_now_ns() ^ (uint64_t)(uintptr_t)fences) | 1;
    return name;
}

void fences_init(struct fences *fences) {
    fences->name = draw_name(fences);
    pthread_mutex_init(&fences->lock, NULL);
    for (unsigned i = 0; i < FENCE_BUCKETS; i++)
        list_init(&fences->buckets[i]);
}

void fences_close(struct fences *fences) {
    if (fences->gpu != NULL && !fences->is_on_board)
        (void)fences->gpu->host_unregister(fences->array.words);
    fences->gpu = NULL;
}

void fences_deinit(struct fences *fences) {
    for (unsigned i = 0; fences->words != NULL && i < fences->n_words; i++)
        pthread_mutex_destroy(&fences->words[i].lock);
    fences_forget(fences);
    pthread_mutex_destroy(&fences->lock);
}

void fences_forget(struct fences *fences) {
    free(fences->words);
    fences->words = NULL;
    fences->gpu = NULL;
}

/* The words in the page, registered. NULL: there are none. */
static _Atomic uint64_t *find_in_page(struct session *session, const struct gpu *gpu) {
    if (page_need(&session->page, &session->connection, connection_deadline_ns(&session->connection, 0)) <
            0 ||
        gpu->host_register(session->page.memory->fences, WORDS_BYTES) != 0)
        return NULL;
    return session->page.memory->fences;
}

static _Atomic uint64_t *find_on_board(struct session *session, const struct gpu *gpu) {
    return board_need_for_streams(session, gpu) < 0 ? NULL
                                                    : session->board.memory->slots[session->board.slot].words;
}

/* Where the page or the board may still come, so may the words. */
static void prepare_again(struct session *session, struct fences *fences) {
    if (fences->is_on_board ? session->board.asked : session->page.asked)
        return;
    fences->tried = false;
    for (unsigned i = 0; i < fences->n_words; i++)
        pthread_mutex_destroy(&fences->words[i].lock);
    free(fences->words);
    fences->words = NULL;
    fences->n_words = 0;
}

/* Makes the words usable, once in the client's life. Where it cannot be, every fence is a wait. */
static void prepare_locked(struct session *session, struct fences *fences, const struct gpu *gpu) {
    unsigned count = fences->is_on_board ? PROTO_BOARD_WORDS : PROTO_PAGE_FENCES;
    char text[ERROR_TEXT_SIZE];

    if (fences->tried)
        return;
    fences->tried = true;
    fences->words = calloc(count, sizeof *fences->words);
    if (fences->words == NULL)
        return;
    fences->n_words = count;
    for (unsigned i = 0; i < count; i++)
        pthread_mutex_init(&fences->words[i].lock, NULL);
    error_save(text); /* without words no call fails */
    fences->array.words = fences->is_on_board ? find_on_board(session, gpu) : find_in_page(session, gpu);
    error_restore(text);
    if (fences->array.words != NULL)
        fences->gpu = gpu;
    else
        prepare_again(session, fences);
}

/* Of a stream's words for all devices. */
static struct list *bucket_of(struct fences *fences, const void *stream, uint64_t thread) {
    uint64_t hash = ((uint64_t)(uintptr_t)stream ^ (thread << 32)) * UINT64_C(0x9e3779b97f4a7c15);
    return &fences->buckets[hash >> 32 & (FENCE_BUCKETS - 1)];
}

static uint64_t word_now(const struct fences *fences, uint32_t number) {
    return atomic_load_explicit(&fences->array.words[number], memory_order_acquire);
}

/* A word that no stream has, or that one has which has written its last value. NULL: all are busy. */
static struct fence_word *word_spare_locked(struct fences *fences) {
    if (fences->count < fences->n_words) {
        fences->words[fences->count].value = word_now(fences, fences->count);
        return &fences->words[fences->count++];
    }
    for (unsigned i = 0; i < fences->n_words; i++) {
        unsigned number = (fences->next + i) % fences->n_words;
        struct fence_word *word = &fences->words[number];
        if (word->users == 0 && proto_fence_is_ready(word_now(fences, number), word->value)) {
            fences->next = number + 1;
            list_remove(&word->link);
            return word;
        }
    }
    return NULL;
}

bool fences_are_ready(struct fences *fences) {
    bool are = true;

    pthread_mutex_lock(&fences->lock);
    for (unsigned number = 0; number < fences->count && are; number++) {
        const struct fence_word *word = &fences->words[number];
        are = word->users == 0 && proto_fence_is_ready(word_now(fences, number), word->value);
    }
    pthread_mutex_unlock(&fences->lock);
    return are;
}

void fences_leave_stream(struct fences *fences, const void *stream) {
    struct list *bucket = bucket_of(fences, stream, 0);

    pthread_mutex_lock(&fences->lock);
    list_for_each_entry_safe(struct fence_word, word, bucket, link) {
        if (word->stream == stream && word->thread == 0)
            list_remove(&word->link);
    }
    pthread_mutex_unlock(&fences->lock);
}

/* The word of a stream, for word_put(). NULL: this client has none for it. */
static struct fence_word *word_get(struct session *session, struct fences *fences, const struct gpu *gpu,
                                   unsigned device, void *stream) {
    uint64_t thread = stream == GPUPOOL_PER_THREAD ? fence_thread_number() : 0;
    struct list *bucket = bucket_of(fences, stream, thread);
    struct fence_word *found = NULL;

    pthread_mutex_lock(&fences->lock);
    prepare_locked(session, fences, gpu);
    if (fences->gpu != NULL) {
        list_for_each_entry(struct fence_word, word, bucket, link) {
            if (word->stream == stream && word->device == device && word->thread == thread)
                found = word;
        }
        if (found == NULL) {
            found = word_spare_locked(fences);
            if (found != NULL) {
                found->device = device;
                found->stream = stream;
                found->thread = thread;
                list_append(bucket, &found->link);
            }
        }
    }
    if (found != NULL)
        found->users++;
    pthread_mutex_unlock(&fences->lock);
    return found;
}

static void word_put(struct fences *fences, struct fence_word *word) {
    pthread_mutex_lock(&fences->lock);
    word->users--;
    pthread_mutex_unlock(&fences->lock);
}

/* Waits for the stream where it cannot leave a fence. */
static int wait_for_stream(const struct gpu *gpu, unsigned device, void *stream, struct fence *ret_fence) {
    int error = gpu->stream_synchronize(device, stream);
    if (error != 0)
        return devices_fail_on(gpu, device, error, "waiting for the stream");
    *ret_fence = FENCE_NONE;
    return 0;
}

static int enqueue(struct session *session, struct fences *fences, unsigned device, void *stream,
                   struct fence *ret_fence) {
    const struct gpu *gpu;
    int r = devices_need_gpu(&session->devices, &gpu);
    if (r == 0)
        r = devices_check_stream(gpu, device, stream);
    if (r < 0)
        return r;
#ifdef GPUPOOL_PLANT_NO_FENCE
    /* A fault on purpose, for the test that has to find it: memory is handed on while the GPU uses it. */
    *ret_fence = FENCE_NONE;
    return 0;
#endif
    struct fence_word *word = word_get(session, fences, gpu, device, stream);
    if (word == NULL)
        return wait_for_stream(gpu, device, stream, ret_fence);

    uint32_t number = (uint32_t)(word - fences->words);
    pthread_mutex_lock(&word->lock);
    struct fence fence = {.word = number + 1, .value = word->value + 1};
    /* The driver wants an address; that the word is atomic concerns those who read it. */
    int error = gpu->stream_write64(device, stream, (uint64_t *)&fences->array.words[number], fence.value);
    if (error == 0)
        word->value = fence.value;
    pthread_mutex_unlock(&word->lock);
    word_put(fences, word);
    if (error == GPU_ERROR_NOT_SUPPORTED)
        return wait_for_stream(gpu, device, stream, ret_fence);
    if (error != 0)
        return devices_fail_on(gpu, device, error, "leaving a fence on the stream");
    *ret_fence = fence;
    return 0;
}

int fences_enqueue(struct session *session, unsigned device, void *stream, struct fence *ret_fence) {
    return enqueue(session, &session->fences, device, stream, ret_fence);
}

int fences_enqueue_on_board(struct session *session, unsigned device, void *stream,
                            struct proto_board_fence *ret_fence, bool *ret_is_left) {
    struct fence fence;
    int r = enqueue(session, &session->board_fences, device, stream, &fence);

    if (r < 0)
        return r;
    *ret_is_left = fence.word != 0;
    *ret_fence = (struct proto_board_fence){0};
    if (fence.word != 0)
        *ret_fence = (struct proto_board_fence){
            .slot = session->board.slot, .word = fence.word - 1, .value = fence.value};
    return 0;
}

bool fences_may_have(struct fences *fences, uint32_t word, uint64_t value) {
    pthread_mutex_lock(&fences->lock);
    struct fence_word *found = word < fences->count ? &fences->words[word] : NULL;
    pthread_mutex_unlock(&fences->lock);
    if (found == NULL)
        return false;
    pthread_mutex_lock(&found->lock);
    bool may = proto_fence_is_ready(found->value, value);
    pthread_mutex_unlock(&found->lock);
    return may;
}

void fences_show(struct fences *fences) {
#if defined(__SANITIZE_THREAD__)
    pthread_mutex_lock(&fences->lock);
    for (unsigned number = 0; number < fences->count; number++)
        (void)word_now(fences, number);
    pthread_mutex_unlock(&fences->lock);
#else
    (void)fences;
#endif
}

bool fence_is_ready(const struct session *session, struct fence fence) {
    return fence_array_has(&session->fences.array, fence);
}

int fence_wait(const struct session *session, struct fence fence, int device, uint64_t deadline_ns) {
    if (fence_is_ready(session, fence))
        return 0;
    uint64_t begin_ns = clock_now_ns(), ask_ns = begin_ns + ASK_NS;
    while (!fence_is_ready(session, fence)) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            return error_set(GPUPOOL_E_TIMED_OUT, "the GPU work before the fence is not done yet");
        if (device >= 0 && now_ns >= ask_ns) {
            int r = devices_check_device(session->devices.gpu, (unsigned)device);
            if (r < 0)
                return r;
            ask_ns = now_ns + ASK_NS;
        }
        wait_pause(now_ns - begin_ns, deadline_ns - now_ns);
    }
    return 0;
}

int fence_order(struct session *session, struct fence fence, unsigned device, void *stream) {
    const struct gpu *gpu;

    if (fence_is_ready(session, fence))
        return 0;
    int r = devices_need_gpu(&session->devices, &gpu);
    if (r == 0)
        r = devices_check_stream(gpu, device, stream);
    if (r < 0)
        return r;
    int error = gpu->stream_wait64(device, stream, (uint64_t *)&session->fences.array.words[fence.word - 1],
                                   fence.value);
    return error == 0 ? 0 : devices_fail_on(gpu, device, error, "making a stream wait for a fence");
}
