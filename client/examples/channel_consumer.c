/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel_consumer [--place N] NAME
 *
 * Receives the frames of channel_producer, checks them, and ends when the producer has left. It takes the place of a
 * consumer that was killed, if there is one, and goes on there. Frames of host memory are read where they lie. Frames of
 * GPU memory are copied to a host buffer by a stream, which waits for the producer's stream on the GPU.
 *
 * If the producer is killed, the program waits for the next one. It connects to the daemon that GPUPOOL_SOCKET names.
 */
#include <getopt.h>
#include <gpupool/channel.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define WAIT_NS UINT64_C(60000000000) /* for the channel, and for the place */

/* The process's part of the channel. */
struct consumer {
    struct gpupool_client *client;
    struct gpupool_channel *channel;
    void *stream;               /* GPUPOOL_NO_STREAM: the frames are host memory */
    struct gpupool_buffer copy; /* host memory, for frames of GPU memory */
    uint64_t n_frames, n_again;
};

static int fail(const char *what) {
    fprintf(stderr, "channel_consumer: %s: %s\n", what, gpupool_error_text());
    return -1;
}

/* Whether the channel's slots are GPU memory. -1: an error. */
static int is_on_device(const struct consumer *consumer, uint64_t *ret_slot_bytes) {
    struct gpupool_channel_info info;
    struct gpupool_pool pools[64];
    size_t count;

    if (gpupool_channel_look(consumer->channel, &info) < 0 ||
        gpupool_pools(consumer->client, pools, sizeof pools / sizeof *pools, &count) < 0)
        return fail("looking at the channel");
    *ret_slot_bytes = info.options.slot_bytes;
    for (size_t i = 0; i < count && i < sizeof pools / sizeof *pools; i++)
        if (pools[i].id == info.options.pool)
            return pools[i].kind == GPUPOOL_POOL_DEVICE;
    return 0;
}

/* A stream and a host buffer, if the frames are GPU memory. */
static int prepare(struct consumer *consumer) {
    uint64_t slot_bytes;
    uint32_t host_pool;
    int on_device = is_on_device(consumer, &slot_bytes);

    consumer->stream = GPUPOOL_NO_STREAM;
    if (on_device <= 0)
        return on_device;
    if (gpupool_stream_create(consumer->client, 0, &consumer->stream) < 0 ||
        gpupool_host_pool(consumer->client, -1, &host_pool) < 0 ||
        gpupool_acquire(consumer->client, host_pool, slot_bytes, consumer->stream, WAIT_NS, 0,
                        &consumer->copy) < 0)
        return fail("preparing the copies");
    return 0;
}

/* The bytes of a frame, where the CPU can read them. NULL: an error. */
static const unsigned char *read_frame(struct consumer *consumer, const struct gpupool_frame *frame) {
    if (consumer->stream == GPUPOOL_NO_STREAM)
        return frame->data;
    if (gpupool_copy(consumer->client, 0, consumer->copy.data, frame->data, frame->size_bytes,
                     consumer->stream) < 0 ||
        gpupool_stream_synchronize(consumer->client, 0, consumer->stream) < 0) {
        fail("copying a frame");
        return NULL;
    }
    return consumer->copy.data;
}

/* Checks a frame, and releases it. */
static int take_frame(struct consumer *consumer, const struct gpupool_frame *frame) {
    const uint64_t number = frame->metadata_bytes == sizeof number ? *(const uint64_t *)frame->metadata : 0;
    const unsigned char *bytes = read_frame(consumer, frame);

    if (bytes == NULL)
        return -1;
    for (uint64_t i = 0; i < frame->size_bytes; i++)
        if (bytes[i] != (unsigned char)number) {
            fprintf(stderr, "channel_consumer: byte %" PRIu64 " of frame %" PRIu64 " is %u\n", i, number,
                    bytes[i]);
            return -1;
        }
    consumer->n_frames++;
    consumer->n_again += frame->is_again;
    if (gpupool_channel_release(consumer->channel, frame, consumer->stream) < 0)
        return fail("releasing a frame");
    return 0;
}

/* Waits until a receive may have something. */
static int await_producer(const struct consumer *consumer) {
    struct pollfd watched = {.fd = gpupool_channel_fd(consumer->channel), .events = POLLIN};

    if (watched.fd < 0)
        return fail("no descriptor");
    fprintf(stderr, "channel_consumer: the producer has died; waiting for the next one\n");
    return poll(&watched, 1, -1) < 0 ? -1 : 0;
}

static int run(struct consumer *consumer) {
    struct gpupool_frame frame;
    int r = prepare(consumer);

    while (r == 0) {
        r = gpupool_channel_receive(consumer->channel, consumer->stream, GPUPOOL_FOREVER, &frame);
        if (r == GPUPOOL_E_ENDED)
            break;
        if (r == 0)
            r = take_frame(consumer, &frame);
        else if (r == GPUPOOL_E_VACANT)
            r = await_producer(consumer);
        else if (r == GPUPOOL_E_LOST) /* its producer died before the GPU had written the frame */
            r = 0;
        else
            return fail("receiving");
    }
    if (r != GPUPOOL_E_ENDED)
        return r;
    printf("%" PRIu64 " frames received, %" PRIu64 " of them once more\n", consumer->n_frames,
           consumer->n_again);
    return gpupool_channel_leave(consumer->channel) < 0 ? fail("leaving") : 0;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"place", required_argument, NULL, 'p'}, {0}};
    uint32_t place = GPUPOOL_CHANNEL_ANY_CONSUMER;
    struct consumer consumer = {0};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) >= 0) {
        if (option != 'p')
            return 2;
        place = (uint32_t)strtoul(optarg, NULL, 10);
    }
    if (optind + 1 != argc) {
        fputs("Usage: channel_consumer [--place N] NAME\n", stderr);
        return 2;
    }
    if (gpupool_open(NULL, &consumer.client) < 0 ||
        gpupool_channel_join(consumer.client, argv[optind], place, WAIT_NS, &consumer.channel) < 0) {
        fail("no channel");
        return 1;
    }
    int r = run(&consumer);
    gpupool_close(consumer.client); /* gives the stream's buffer back, too */
    return r < 0 ? 1 : 0;
}
