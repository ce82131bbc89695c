/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_producer [--device] [--frames N] [--consumers N] NAME
 *
 * Makes a channel, and sends frames through it to one or more processes of channel_consumer. Each frame is 1 MiB of one
 * byte, and its metadata is its number. Host memory is written by the CPU. With --device the frames lie in memory of the
 * first GPU, and a stream writes them: no call waits for the GPU.
 *
 * A consumer that is late or was killed loses nothing: its frames wait, and the program waits for a slot. Where a
 * producer was killed, the program takes its place. It ends when all consumers have released all frames. It connects to the daemon that GPUPOOL_SOCKET names.
 */
#include <getopt.h>
#include <gpupool/channel.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_BYTES (UINT64_C(1) << 20)
#define SLOTS       4u
#define WAIT_NS     UINT64_C(60000000000) /* for a consumer */

static int fail(const char *what) {
    fprintf(stderr, "channel_producer: %s: %s\n", what, gpupool_error_text());
    return -1;
}

/* Writes frame `number` into a slot, and sends it. stream: GPUPOOL_NO_STREAM for host memory. */
static int send_frame(struct gpupool_client *client, struct gpupool_channel *channel, void *stream,
                      uint64_t number) {
    struct gpupool_frame frame;

    /* The stream waits, on the GPU, until the consumers' streams have read what was in the slot. */
    if (gpupool_channel_loan(channel, stream, WAIT_NS, &frame) < 0)
        return fail("no slot");
    if (stream == GPUPOOL_NO_STREAM)
        memset(frame.data, (int)(number & 0xff), FRAME_BYTES);
    else if (gpupool_set(client, 0, frame.data, (int)(number & 0xff), FRAME_BYTES, stream) < 0)
        return fail("writing a frame");
    if (gpupool_channel_send(channel, &frame, FRAME_BYTES, &number, sizeof number, stream) < 0)
        return fail("sending a frame");
    return 0;
}

/* Waits until all frames are released: the slots are all free then, and can all be loaned. */
static int drain(struct gpupool_channel *channel) {
    struct gpupool_frame frame;

    for (unsigned i = 0; i < SLOTS; i++)
        if (gpupool_channel_loan(channel, GPUPOOL_NO_STREAM, WAIT_NS, &frame) < 0)
            return fail("a consumer does not release its frames");
    return 0;
}

/* Makes the channel, unless it is there, and takes the place of its producer. */
static int open_channel(struct gpupool_client *client, const char *name, bool device, uint32_t consumers,
                        struct gpupool_channel **ret_channel) {
    struct gpupool_channel_options options = GPUPOOL_CHANNEL_OPTIONS_INIT;
    struct gpupool_channel_info info;
    int r =
        device ? gpupool_device_pool(client, 0, &options.pool) : gpupool_host_pool(client, -1, &options.pool);

    if (r < 0)
        return fail("no pool");
    options.slot_bytes = FRAME_BYTES;
    options.slots = SLOTS;
    options.consumers = consumers;
    options.metadata_bytes = sizeof(uint64_t);
    r = gpupool_channel_make(client, name, &options);
    if (r < 0 && r != GPUPOOL_E_INVALID) /* INVALID: the name stands for something */
        return fail("no channel");
    if (gpupool_channel_join(client, name, GPUPOOL_CHANNEL_PRODUCER, WAIT_NS, ret_channel) < 0 ||
        gpupool_channel_look(*ret_channel, &info) < 0)
        return fail("no channel");
    if (info.options.pool == options.pool && info.options.slot_bytes == FRAME_BYTES &&
        info.options.slots == SLOTS && info.options.metadata_bytes == sizeof(uint64_t))
        return 0;
    fprintf(stderr, "channel_producer: '%s' is a channel for other frames\n", name);
    return -1;
}

static int run(struct gpupool_client *client, const char *name, bool device, uint64_t frames,
               uint32_t consumers) {
    void *stream = GPUPOOL_NO_STREAM;
    struct gpupool_channel *channel;

    if (open_channel(client, name, device, consumers, &channel) < 0)
        return -1;
    if (device && gpupool_stream_create(client, 0, &stream) < 0)
        return fail("no stream");
    for (uint64_t number = 1; number <= frames; number++)
        if (send_frame(client, channel, stream, number) < 0)
            return -1;
    if (drain(channel) < 0)
        return -1;
    printf("%" PRIu64 " frames of %s memory sent to %" PRIu32 "\n", frames, device ? "device" : "host",
           consumers);
    if (gpupool_channel_leave(channel) < 0)
        return fail("leaving");
    return device ? gpupool_stream_destroy(client, 0, stream) : 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"device", no_argument, NULL, 'd'},
                                            {"frames", required_argument, NULL, 'f'},
                                            {"consumers", required_argument, NULL, 'c'},
                                            {0}};
    struct gpupool_client *client;
    uint64_t frames = 100;
    uint32_t consumers = 1;
    bool device = false;
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option == 'd')
            device = true;
        else if (option == 'f')
            frames = strtoull(optarg, NULL, 10);
        else if (option == 'c')
            consumers = (uint32_t)strtoul(optarg, NULL, 10);
        else
            return 2;
    }
    if (optind + 1 != argc) {
        fputs("Usage: channel_producer [--device] [--frames N] [--consumers N] NAME\n", stderr);
        return 2;
    }
    if (gpupool_open(NULL, &client) < 0) {
        fail("no daemon");
        return 1;
    }
    int r = run(client, argv[optind], device, frames, consumers);
    gpupool_close(client); /* the end of the channel: no process is in it, and it is not kept */
    return r < 0 ? 1 : 0;
}
