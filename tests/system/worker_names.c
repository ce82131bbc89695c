/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/worker_names.h"

#include <gpupool/names.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES           10u
#define DIRECTORY_BYTES 20000u /* two parts on the wire, and some of the estate */
#define NS_PER_MS       UINT64_C(1000000)

/* Not in the libraries of earlier releases, with which the program runs as well. */
extern __typeof__(gpupool_publish) gpupool_publish __attribute__((weak));
extern __typeof__(gpupool_unpublish) gpupool_unpublish __attribute__((weak));
extern __typeof__(gpupool_open_name) gpupool_open_name __attribute__((weak));
extern __typeof__(gpupool_open_or_build) gpupool_open_or_build __attribute__((weak));
extern __typeof__(gpupool_abandon_name) gpupool_abandon_name __attribute__((weak));
extern __typeof__(gpupool_close_name) gpupool_close_name __attribute__((weak));
extern __typeof__(gpupool_watch_name) gpupool_watch_name __attribute__((weak));
extern __typeof__(gpupool_sleep_name) gpupool_sleep_name __attribute__((weak));
extern __typeof__(gpupool_wake_name) gpupool_wake_name __attribute__((weak));
extern __typeof__(gpupool_name_buffers) gpupool_name_buffers __attribute__((weak));
extern __typeof__(gpupool_name_directory) gpupool_name_directory __attribute__((weak));

static struct gpupool_name *names[NAMES];

static void say(int result, const char *word) {
    if (result < 0)
        printf("error %s\n", gpupool_error_text());
    else
        printf("ok %s\n", word);
    fflush(stdout);
}

static const uint8_t *directory_of(const char *name) {
    static uint8_t directory[DIRECTORY_BYTES];
    size_t length = strlen(name);

    for (unsigned i = 0; i < DIRECTORY_BYTES; i++)
        directory[i] = (uint8_t)(name[i % length] + i / 256);
    return directory;
}

static int publish(struct gpupool_client *client, const char *name, const struct gpupool_buffer *buffer,
                   uint32_t flags) {
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;

    publication.flags = flags;
    publication.directory = directory_of(name);
    publication.directory_bytes = DIRECTORY_BYTES;
    return gpupool_publish(client, name, buffer, 1, GPUPOOL_NO_STREAM, &publication, NULL);
}

/* The name is open: its first buffer is the worker's. */
static void take(unsigned number, const char *name, struct gpupool_buffer *buffer) {
    size_t bytes;
    const void *directory = gpupool_name_directory(names[number], &bytes);

    if (bytes != DIRECTORY_BYTES || memcmp(directory, directory_of(name), bytes) != 0)
        abort();
    *buffer = *gpupool_name_buffers(names[number], NULL);
}

static int acquire_sleeper(struct gpupool_client *client, uint64_t size_bytes,
                           struct gpupool_buffer *buffer) {
    uint32_t pool;
    int r = gpupool_device_pool(client, 0, &pool);

    return r < 0 ? r
                 : gpupool_acquire(client, pool, size_bytes, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER,
                                   GPUPOOL_CAN_SLEEP, buffer);
}

static int open_name(struct gpupool_client *client, unsigned number, const char *name, uint32_t flags,
                     uint64_t timeout_ns, struct gpupool_buffer *buffer) {
    int r = gpupool_open_name(client, name, 0, flags, GPUPOOL_NO_STREAM, timeout_ns, &names[number]);

    if (r == 0)
        take(number, name, buffer);
    return r;
}

static void build(struct gpupool_client *client, unsigned number, const char *name,
                  struct gpupool_buffer *buffer, uint64_t timeout_ns) {
    int builds = 0;

    int r = gpupool_open_or_build(client, name, 0, GPUPOOL_NO_STREAM, timeout_ns, &names[number], &builds);
    if (r == 0 && !builds)
        take(number, name, buffer);
    say(r, builds ? "builds" : "there");
}

bool serve_names(struct gpupool_client *client, const char *word, unsigned number,
                 struct gpupool_buffer *buffer, const char *name, unsigned long long first,
                 unsigned long long second) {
    uint64_t timeout_ns = first * NS_PER_MS, generation = 0;
    char text[32];
    int r;

    if (strcmp(word, "publish") == 0) {
        say(publish(client, name, buffer, (uint32_t)first), "");
    } else if (strcmp(word, "unpublish") == 0) {
        say(gpupool_unpublish(client, name, 0), "");
    } else if (strcmp(word, "abandon") == 0) {
        say(gpupool_abandon_name(client, name), "");
    } else if (strcmp(word, "open-name") == 0) {
        say(open_name(client, number, name, 0, timeout_ns, buffer), "");
    } else if (strcmp(word, "open-sleeper") == 0) {
        say(open_name(client, number, name, GPUPOOL_NAME_CAN_SLEEP, timeout_ns, buffer), "");
    } else if (strcmp(word, "acquire-sleeper") == 0) {
        say(acquire_sleeper(client, first, buffer), "");
    } else if (strcmp(word, "sleep-name") == 0) {
        say(gpupool_sleep_name(client, names[number], GPUPOOL_NO_STREAM), "");
    } else if (strcmp(word, "wake-name") == 0) {
        r = gpupool_wake_name(client, names[number], second, GPUPOOL_NO_STREAM, timeout_ns);
        if (r == 0)
            take(number, name, buffer);
        say(r, "");
    } else if (strcmp(word, "close-name") == 0) {
        r = gpupool_close_name(client, names[number], GPUPOOL_NO_STREAM);
        names[number] = NULL;
        say(r, "");
    } else if (strcmp(word, "build") == 0) {
        build(client, number, name, buffer, timeout_ns);
    } else if (strcmp(word, "watch") == 0) {
        r = gpupool_watch_name(client, name, second, timeout_ns, &generation);
        snprintf(text, sizeof text, "%" PRIu64, generation);
        say(r, text);
    } else {
        return false;
    }
    return true;
}
