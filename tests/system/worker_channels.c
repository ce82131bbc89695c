/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/system/worker_channels.h"

#include <gpupool/channel.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLACES     10u
#define SLOT_BYTES 65536u
#define NS_PER_MS  UINT64_C(1000000)
#define WAIT_NS    (UINT64_C(50000) * NS_PER_MS)

/* Not in the libraries of earlier releases, with which the program runs as well. */
extern __typeof__(gpupool_channel_make) gpupool_channel_make __attribute__((weak));
extern __typeof__(gpupool_channel_join) gpupool_channel_join __attribute__((weak));
extern __typeof__(gpupool_channel_leave) gpupool_channel_leave __attribute__((weak));
extern __typeof__(gpupool_channel_loan) gpupool_channel_loan __attribute__((weak));
extern __typeof__(gpupool_channel_send) gpupool_channel_send __attribute__((weak));
extern __typeof__(gpupool_channel_receive) gpupool_channel_receive __attribute__((weak));
extern __typeof__(gpupool_channel_release) gpupool_channel_release __attribute__((weak));
extern __typeof__(gpupool_channel_look) gpupool_channel_look __attribute__((weak));

static struct gpupool_channel *channels[PLACES];

static void say(int result, const char *word) {
    if (result < 0)
        printf("error %s\n", gpupool_error_text());
    else
        printf("ok %s\n", word);
    fflush(stdout);
}

static int make(struct gpupool_client *client, const char *name, unsigned long long kind, uint32_t slots) {
    struct gpupool_channel_options options = GPUPOOL_CHANNEL_OPTIONS_INIT;
    int r = kind == 0 ? gpupool_host_pool(client, -1, &options.pool)
                      : gpupool_device_pool(client, 0, &options.pool);

    options.slot_bytes = SLOT_BYTES;
    options.slots = slots;
    options.metadata_bytes = 8;
    options.flags = kind == 0 ? GPUPOOL_CHANNEL_KEEP : 0;
    return r < 0 ? r : gpupool_channel_make(client, name, &options);
}

static int send_frame(struct gpupool_channel *channel, int byte, uint64_t timeout_ns) {
    struct gpupool_frame frame;
    int r = gpupool_channel_loan(channel, GPUPOOL_NO_STREAM, timeout_ns, &frame);

    if (r < 0)
        return r;
    memset(frame.data, byte, SLOT_BYTES);
    return gpupool_channel_send(channel, &frame, SLOT_BYTES, NULL, 0, GPUPOOL_NO_STREAM);
}

static int receive_frame(struct gpupool_channel *channel, int byte, uint64_t timeout_ns, bool holds,
                         uint32_t *ret_is_again) {
    struct gpupool_frame frame;
    int r = gpupool_channel_receive(channel, GPUPOOL_NO_STREAM, timeout_ns, &frame);

    if (r < 0)
        return r;
    const uint8_t *bytes = frame.data;
    for (unsigned i = 0; i < SLOT_BYTES; i++)
        if (bytes[i] != (uint8_t)byte) {
            fprintf(stderr, "byte %u of frame %" PRIu64 " is %u, not %u\n", i, frame.sequence, bytes[i],
                    (uint8_t)byte);
            abort();
        }
    *ret_is_again = frame.is_again;
    return holds ? 0 : gpupool_channel_release(channel, &frame, GPUPOOL_NO_STREAM);
}

static int stream_frames(struct gpupool_channel *channel, unsigned long long count, unsigned long long seed) {
    struct gpupool_channel_info info;
    uint32_t is_again;
    int r = gpupool_channel_look(channel, &info);

    for (unsigned long long i = 0; r == 0 && i < count; i++)
        r = info.place == GPUPOOL_CHANNEL_PRODUCER
                ? send_frame(channel, (int)(seed + i), WAIT_NS)
                : receive_frame(channel, (int)(seed + i), WAIT_NS, false, &is_again);
    return r;
}

bool serve_channels(struct gpupool_client *client, const char *word, unsigned number, const char *name,
                    unsigned long long first, unsigned long long second) {
    uint32_t is_again = 0;
    int r;

    if (strcmp(word, "make-channel") == 0) {
        say(make(client, name, first, (uint32_t)second), "");
    } else if (strcmp(word, "join") == 0) {
        say(gpupool_channel_join(client, name, (uint32_t)first, second * NS_PER_MS, &channels[number]), "");
    } else if (strcmp(word, "leave") == 0) {
        say(gpupool_channel_leave(channels[number]), "");
        channels[number] = NULL;
    } else if (strcmp(word, "send-frame") == 0) {
        say(send_frame(channels[number], (int)first, second * NS_PER_MS), "");
    } else if (strcmp(word, "receive-frame") == 0 || strcmp(word, "hold-frame") == 0) {
        r = receive_frame(channels[number], (int)first, second * NS_PER_MS, word[0] == 'h', &is_again);
        say(r, is_again ? "again" : "");
    } else if (strcmp(word, "stream-frames") == 0) {
        say(stream_frames(channels[number], first, second), "");
    } else {
        return false;
    }
    return true;
}
