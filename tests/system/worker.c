/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker for the system tests that does as it is told: a line on its standard input is a command, and a line on its
 * standard output the answer: "ok", "ok" with a token, or "error" with the text. Buffers have names of one digit. The
 * daemon is the one that $GPUPOOL_SOCKET names; GPUPOOL_WORKER_FLAGS are those of gpupool_open().
 *
 *   acquire N host|device BYTES MS   fill N BYTE   check N BYTE   release N   share N   attach N TOKEN   send N
 *   revoke TOKEN   shrink N BYTES   trim   query N   state   changes (of the state, so far)
 *   churn MS (acquires, shares and releases for so long)
 *   begin N host|device BYTES MS   end N   cancel N (and end, whether it has its memory or not)
 *   open (another client, for all that follows; the first one keeps its buffers until the end)
 *
 * Behind a stream of device 0:
 *
 *   stream-release N   stream-share N   stream-attach N TOKEN   stream-reuse N
 *
 * Commands about names are in worker_names.h, those about channels in worker_channels.h.
 *
 * attach and query go on where they say that a process was lost, which they say once for each.
 */
#include <gpupool/gpupool.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/system/worker_channels.h"
#include "tests/system/worker_names.h"

#define BUFFERS     10u
#define NS_PER_MS   UINT64_C(1000000)
#define LIFETIME_NS UINT64_C(60000000000)

/* Not in the library of 0.1.0, with which the program runs as well. */
extern __typeof__(gpupool_connection_state) gpupool_connection_state __attribute__((weak));

static struct gpupool_client *client, *former;
static struct gpupool_buffer buffers[BUFFERS];
static uint64_t requests[BUFFERS];
static void *stream;

static void answer(int result) {
    if (result < 0)
        printf("error %s\n", gpupool_error_text());
    else
        puts("ok");
    fflush(stdout);
}

static void answer_token(int result, const struct gpupool_token *token) {
    if (result < 0) {
        answer(result);
        return;
    }
    fputs("ok ", stdout);
    for (size_t i = 0; i < sizeof token->bytes; i++)
        printf("%02x", token->bytes[i]);
    puts("");
    fflush(stdout);
}

static struct gpupool_token parse_token(const char *text) {
    struct gpupool_token token = {{0}};

    for (size_t i = 0; i < sizeof token.bytes && text[2 * i] != '\0' && text[2 * i + 1] != '\0'; i++)
        token.bytes[i] = (uint8_t)strtoul((const char[]){text[2 * i], text[2 * i + 1], '\0'}, NULL, 16);
    return token;
}

static int find_pool(const char *kind, uint32_t *ret_pool) {
    return strcmp(kind, "device") == 0 ? gpupool_device_pool(client, 0, ret_pool)
                                       : gpupool_host_pool(client, -1, ret_pool);
}

static int acquire(struct gpupool_buffer *buffer, const char *kind, uint64_t size_bytes,
                   uint64_t timeout_ms) {
    uint32_t pool;
    int r = find_pool(kind, &pool);

    return r < 0 ? r
                 : gpupool_acquire(client, pool, size_bytes, GPUPOOL_NO_STREAM, timeout_ms * NS_PER_MS, 0,
                                   buffer);
}

static int begin(uint64_t *request, const char *kind, uint64_t size_bytes, uint64_t timeout_ms) {
    uint32_t pool;
    int r = find_pool(kind, &pool);

    return r < 0 ? r
                 : gpupool_acquire_begin(client, pool, size_bytes, GPUPOOL_NO_STREAM, timeout_ms * NS_PER_MS,
                                         0, request);
}

/* Its memory may have come before. */
static int cancel(uint64_t request, struct gpupool_buffer *buffer) {
    int r = gpupool_request_cancel(client, request);

    if (r == 0)
        r = gpupool_acquire_end(client, request, buffer);
    if (r == GPUPOOL_E_CANCELLED)
        return 0;
    return r == 0 ? gpupool_release(client, buffer, GPUPOOL_NO_STREAM) : r;
}

static int query(const struct gpupool_buffer *buffer) {
    struct gpupool_buffer_info info;
    int r;

    while ((r = gpupool_query(client, buffer, &info)) == GPUPOOL_E_LOST)
        ;
    return r;
}

static int attach(const char *text, void *behind, struct gpupool_buffer *buffer) {
    struct gpupool_token token = parse_token(text);
    int r;

    while ((r = gpupool_attach(client, &token, behind, 0, buffer)) == GPUPOOL_E_LOST)
        ;
    return r;
}

/* The simulated GPU's memory is memory of the process. */
static void check(const struct gpupool_buffer *buffer, int byte) {
    const uint8_t *bytes = buffer->data;
    uint64_t i = 0;

    while (i < buffer->size_bytes && bytes[i] == (uint8_t)byte)
        i++;
    if (i == buffer->size_bytes)
        answer(0);
    else
        printf("error byte %" PRIu64 " is %u\n", i, bytes[i]);
    fflush(stdout);
}

static int need_stream(void) {
    return stream == NULL ? gpupool_stream_create(client, 0, &stream) : 0;
}

static bool serve_behind(const char *word, struct gpupool_buffer *buffer, const char *text) {
    struct gpupool_token token;
    int r;

    if (strncmp(word, "stream-", 7) != 0)
        return false;
    if ((r = need_stream()) < 0) {
        answer(r);
    } else if (strcmp(word, "stream-release") == 0) {
        answer(gpupool_release(client, buffer, stream));
    } else if (strcmp(word, "stream-share") == 0) {
        answer_token(gpupool_share(client, buffer, stream, &token), &token);
    } else if (strcmp(word, "stream-attach") == 0) {
        answer(attach(text, stream, buffer));
    } else if (strcmp(word, "stream-reuse") == 0) {
        answer(gpupool_reuse(client, buffer, stream));
    } else {
        return false;
    }
    return true;
}

static const char *state_name(enum gpupool_connection_state state) {
    return state == GPUPOOL_CONNECTION_THERE ? "there" : state == GPUPOOL_CONNECTION_AWAY ? "away" : "lost";
}

static void answer_state(void) {
    enum gpupool_connection_state state;
    int r = gpupool_connection_state(client, &state);

    if (r == 0)
        printf("ok %s\n", state_name(state));
    else
        answer(r);
    fflush(stdout);
}

static struct {
    pthread_mutex_t lock;
    char text[256];
} changes = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note_change(void *argument, enum gpupool_connection_state state) {
    (void)argument;
    pthread_mutex_lock(&changes.lock);
    size_t length = strlen(changes.text);
    snprintf(changes.text + length, sizeof changes.text - length, " %s", state_name(state));
    pthread_mutex_unlock(&changes.lock);
}

static void answer_changes(void) {
    pthread_mutex_lock(&changes.lock);
    printf("ok%s\n", changes.text);
    pthread_mutex_unlock(&changes.lock);
    fflush(stdout);
}

static int open_client(struct gpupool_client **ret_client) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    const char *flags = getenv("GPUPOOL_WORKER_FLAGS");

    options.flags = flags != NULL ? (uint32_t)strtoul(flags, NULL, 10) : 0;
    if (gpupool_connection_state != NULL)
        options.connection_changed = note_change;
    return gpupool_open(&options, ret_client);
}

static int open_another(void) {
    struct gpupool_client *another;
    int r = former == NULL ? open_client(&another) : GPUPOOL_E_INVALID;

    if (r == 0) {
        former = client;
        client = another;
    }
    return r;
}

/* One round of churn: requests of most kinds, of which each waits for its answer. */
static int churn_once(unsigned round) {
    static const uint64_t sizes[] = {4096, 3 << 20, 64 << 10, 17 << 20};
    struct gpupool_buffer buffer, other;
    struct gpupool_token token;
    uint64_t size_bytes = sizes[round / 2 % 4];

    int r = acquire(&buffer, round % 2 == 0 ? "host" : "device", size_bytes, LIFETIME_NS / NS_PER_MS);
    if (r < 0)
        return r;
    memset(buffer.data, (int)round, size_bytes);
    r = gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token);
    if (r == 0)
        r = gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &other);
    if (r == 0 && ((const uint8_t *)other.data)[size_bytes - 1] != (uint8_t)round)
        abort();
    if (r == 0)
        r = gpupool_release(client, &other, GPUPOOL_NO_STREAM);
    int released = gpupool_release(client, &buffer, GPUPOOL_NO_STREAM);
    if (round % 16 == 15 && r == 0 && released == 0)
        r = gpupool_trim(client, NULL);
    return r < 0 ? r : released;
}

static uint64_t now_ns(void) {
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * NS_PER_MS + (uint64_t)now.tv_nsec;
}

static int churn(unsigned long milliseconds) {
    uint64_t end_ns = now_ns() + milliseconds * NS_PER_MS;
    int r = 0;

    for (unsigned round = 0; r == 0 && now_ns() < end_ns; round++)
        r = churn_once(round);
    return r;
}

static void serve(char *line) {
    char word[32] = "", second[160] = "", third[160] = "";
    unsigned long long bytes = 0, milliseconds = 0;
    struct gpupool_token token;

    int n = sscanf(line, "%31s %159s %159s %llu %llu", word, second, third, &bytes, &milliseconds);
    unsigned number = n > 1 ? (unsigned)(second[0] - '0') % BUFFERS : 0;
    struct gpupool_buffer *buffer = &buffers[number];
    if (serve_behind(word, buffer, third) ||
        serve_names(client, word, number, buffer, third, bytes, milliseconds) ||
        serve_channels(client, word, number, third, bytes, milliseconds))
        return;
    if (strcmp(word, "acquire") == 0) {
        answer(acquire(buffer, third, bytes, milliseconds));
    } else if (strcmp(word, "fill") == 0) {
        memset(buffer->data, atoi(third), buffer->size_bytes);
        answer(0);
    } else if (strcmp(word, "check") == 0) {
        check(buffer, atoi(third));
    } else if (strcmp(word, "release") == 0) {
        answer(gpupool_release(client, buffer, GPUPOOL_NO_STREAM));
    } else if (strcmp(word, "shrink") == 0) {
        answer(gpupool_shrink(client, buffer, strtoull(third, NULL, 10), GPUPOOL_NO_STREAM));
    } else if (strcmp(word, "trim") == 0) {
        answer(gpupool_trim(client, NULL));
    } else if (strcmp(word, "query") == 0) {
        answer(query(buffer));
    } else if (strcmp(word, "begin") == 0) {
        answer(begin(&requests[number], third, bytes, milliseconds));
    } else if (strcmp(word, "end") == 0) {
        answer(gpupool_acquire_end(client, requests[number], buffer));
    } else if (strcmp(word, "cancel") == 0) {
        answer(cancel(requests[number], buffer));
    } else if (strcmp(word, "share") == 0) {
        answer_token(gpupool_share(client, buffer, GPUPOOL_NO_STREAM, &token), &token);
    } else if (strcmp(word, "send") == 0) {
        answer_token(gpupool_send(client, buffer, GPUPOOL_NO_STREAM, 1, LIFETIME_NS, &token), &token);
    } else if (strcmp(word, "attach") == 0) {
        answer(attach(third, GPUPOOL_NO_STREAM, buffer));
    } else if (strcmp(word, "revoke") == 0) {
        token = parse_token(second);
        answer(gpupool_revoke(client, &token));
    } else if (strcmp(word, "churn") == 0) {
        answer(churn(strtoul(second, NULL, 10)));
    } else if (strcmp(word, "state") == 0) {
        answer_state();
    } else if (strcmp(word, "open") == 0) {
        answer(open_another());
    } else if (strcmp(word, "changes") == 0) {
        answer_changes();
    } else {
        puts("error there is no such command");
        fflush(stdout);
    }
}

int main(void) {
    char line[512];

    int r = open_client(&client);
    answer(r);
    while (r == 0 && fgets(line, sizeof line, stdin) != NULL)
        serve(line);
    if (former != NULL)
        gpupool_close(former);
    if (r == 0)
        gpupool_close(client);
    return r < 0;
}
