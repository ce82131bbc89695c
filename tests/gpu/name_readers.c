/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reader of a name that has captured a graph, and whose publisher publishes one generation after the other. The graph
 * reads each of them at the same addresses.
 *
 *     name_readers [--gpu cuda|sim] [--size BYTES] [--buffers N] [--rounds N] [--json FILE]    default: cuda, 4 GiB, 16, 7
 *
 * The daemon is $GPUPOOL_DAEMON, with a device pool whose export is vmm. The publisher is this process, and the reader
 * another one. In a round the publisher
 *
 * 1. publishes a set in other memory, and the reader changes to it while it has the former one,
 * 2. has the reader sleep, writes that set again in place, and publishes it, and the reader wakes.
 *
 * After each step the reader launches the graph, and compares what it brought with the generation's contents. Exit status
 * 0: all were right; 1: not so; 77: no GPU. The times are medians, and no bar.
 */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>

#include <gpupool/names.h>

#include "base/clock.h"
#include "tests/bench/statistics.h"
#include "tests/gpu/name_graph.h"
#include "tests/gpu/name_processes.h"

#define NAME        "generations"
#define BUFFERS_MAX GPUPOOL_NAME_BUFFERS_MAX

enum order {
    ORDER_CHANGE, /* to a generation, in the place of the former one */
    ORDER_SLEEP,
    ORDER_WAKE /* with a generation */
};

struct order_message {
    enum order order;
    int byte; /* of the contents afterwards */
    uint64_t generation;
};

/* --- the reader --- */

struct reader {
    struct gpupool_client *client;
    struct gpupool_name *name;
    struct gpupool_buffer output;
    struct name_graph *graph;
    void *stream;
    size_t count;
    const void *places[BUFFERS_MAX];
};

static void check_contents(struct reader *reader, int byte) {
    static unsigned char bytes[BUFFERS_MAX * NAME_GRAPH_BYTES];
    size_t n_bytes = reader->count * NAME_GRAPH_BYTES;

    for (size_t i = 0; i < reader->count; i++)
        need_holds(gpupool_name_buffers(reader->name, NULL)[i].data == reader->places[i],
                   "a buffer has moved");
    need(gpupool_set(reader->client, 0, reader->output.data, 0, n_bytes, reader->stream), "set");
    need_holds(name_graph_launch(reader->graph, reader->stream) == 0, "the graph was not launched");
    need(gpupool_copy(reader->client, 0, bytes, reader->output.data, n_bytes, reader->stream), "copy");
    need(gpupool_stream_synchronize(reader->client, 0, reader->stream), "synchronize");
    for (size_t i = 0; i < n_bytes; i++)
        if (bytes[i] != byte) {
            fprintf(stderr, "byte %zu of buffer %zu is %u, not %d\n", i % NAME_GRAPH_BYTES,
                    i / NAME_GRAPH_BYTES, bytes[i], byte);
            exit(1);
        }
}

static void reader_begin(struct reader *reader) {
    uint32_t pool;

    need(gpupool_open(NULL, &reader->client), "open");
    need(gpupool_device_pool(reader->client, 0, &pool), "the device's pool");
    need(gpupool_stream_create(reader->client, 0, &reader->stream), "a stream");
    need(gpupool_open_name(reader->client, NAME, 0, GPUPOOL_NAME_CAN_SLEEP, reader->stream, GPUPOOL_NOW,
                           &reader->name),
         "open the name");
    const struct gpupool_buffer *buffers = gpupool_name_buffers(reader->name, &reader->count);
    for (size_t i = 0; i < reader->count; i++)
        reader->places[i] = buffers[i].data;
    need(gpupool_acquire(reader->client, pool, reader->count * NAME_GRAPH_BYTES, reader->stream,
                         GPUPOOL_FOREVER, 0, &reader->output),
         "acquire");
    reader->graph =
        name_graph_new(reader->client, reader->stream, buffers, reader->count, reader->output.data);
    need_holds(reader->graph != NULL, "no graph");
}

/* Does as it is told, and answers with the time that the call took. */
static int read_generations(void) {
    static struct reader reader;
    struct order_message message = {.byte = 1};
    uint64_t ns = 0;

    reader_begin(&reader);
    check_contents(&reader, message.byte);
    for (tell(ROLE_FD, &ns, sizeof ns); hear(ROLE_FD, &message, sizeof message);
         tell(ROLE_FD, &ns, sizeof ns)) {
        uint64_t start_ns = clock_now_ns();
        if (message.order == ORDER_SLEEP)
            need(gpupool_sleep_name(reader.client, reader.name, reader.stream), "sleep");
        else
            need(
                gpupool_wake_name(reader.client, reader.name, message.generation, reader.stream, GPUPOOL_NOW),
                "wake");
        ns = clock_now_ns() - start_ns;
        if (message.order != ORDER_SLEEP)
            check_contents(&reader, message.byte);
    }
    name_graph_free(reader.graph);
    need(gpupool_close_name(reader.client, reader.name, reader.stream), "close");
    need(gpupool_release(reader.client, &reader.output, reader.stream), "release");
    need(gpupool_stream_destroy(reader.client, 0, reader.stream), "the end of the stream");
    gpupool_close(reader.client);
    return 0;
}

/* --- the publisher --- */

struct publisher {
    struct gpupool_client *client;
    void *stream;
    uint32_t pool;
    size_t count;
    uint64_t size_bytes; /* of a buffer */
    struct gpupool_buffer buffers[BUFFERS_MAX];
    struct role reader;
    struct samples samples[3]; /* by order */
};

static void acquire(struct publisher *publisher) {
    for (size_t i = 0; i < publisher->count; i++)
        need(gpupool_acquire(publisher->client, publisher->pool, publisher->size_bytes, publisher->stream,
                             GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP, &publisher->buffers[i]),
             "acquire");
}

static void release(struct publisher *publisher) {
    for (size_t i = 0; i < publisher->count; i++)
        need(gpupool_release(publisher->client, &publisher->buffers[i], publisher->stream), "release");
}

/* Writes the buffers, and publishes them behind that. */
static uint64_t publish(struct publisher *publisher, int byte) {
    uint64_t generation = 0;

    for (size_t i = 0; i < publisher->count; i++)
        need(gpupool_set(publisher->client, 0, publisher->buffers[i].data, byte, publisher->size_bytes,
                         publisher->stream),
             "set");
    need(gpupool_publish(publisher->client, NAME, publisher->buffers, publisher->count, publisher->stream,
                         NULL, &generation),
         "publish");
    return generation;
}

static void have_reader(struct publisher *publisher, enum order order, uint64_t generation, int byte,
                        bool counts) {
    const struct order_message message = {.order = order, .byte = byte, .generation = generation};
    uint64_t ns;

    tell(publisher->reader.fd, &message, sizeof message);
    role_hear(&publisher->reader, &ns, sizeof ns);
    if (counts)
        samples_add(&publisher->samples[order], ns);
}

/* byte and the one after it are the contents. */
static void play_round(struct publisher *publisher, int byte, bool counts) {
    struct gpupool_buffer former[BUFFERS_MAX];

    memcpy(former, publisher->buffers, sizeof former);
    acquire(publisher);
    uint64_t generation = publish(publisher, byte);
    have_reader(publisher, ORDER_CHANGE, generation, byte, counts);
    for (size_t i = 0; i < publisher->count; i++)
        need(gpupool_release(publisher->client, &former[i], publisher->stream), "release");
    have_reader(publisher, ORDER_SLEEP, 0, 0, counts);
    need(gpupool_unpublish(publisher->client, NAME, generation), "unpublish");
    for (size_t i = 0; i < publisher->count; i++)
        need(gpupool_reuse(publisher->client, &publisher->buffers[i], publisher->stream), "write again");
    generation = publish(publisher, byte + 1);
    have_reader(publisher, ORDER_WAKE, generation, byte + 1, counts);
}

static void begin(struct publisher *publisher, const char *gpu) {
    const char *arguments[] = {"name_readers", "--role", "reader", NULL};
    uint64_t ns;

    publisher->client = open_private(gpu, "[device]\nexport = vmm\n");
    need(gpupool_device_pool(publisher->client, 0, &publisher->pool), "the device's pool");
    need(gpupool_stream_create(publisher->client, 0, &publisher->stream), "a stream");
    acquire(publisher);
    publish(publisher, 1);
    publisher->reader = role_start(arguments);
    role_hear(&publisher->reader, &ns, sizeof ns);
}

static int end(struct publisher *publisher) {
    int status = role_wait(&publisher->reader);

    release(publisher);
    need(gpupool_stream_destroy(publisher->client, 0, publisher->stream), "the end of the stream");
    gpupool_close(publisher->client);
    return status;
}

static void report(struct publisher *publisher, FILE *json) {
    if (json != NULL)
        fprintf(json, "{\"buffers\": %zu, \"buffer_bytes\": %" PRIu64 ", \"times\": {\n", publisher->count,
                publisher->size_bytes);
    for (unsigned i = 0; i < 3; i++) {
        struct samples *samples = &publisher->samples[i];
        samples_sort(samples);
        printf("%-7s %.3f ms, max %.3f ms\n", samples->name,
               (double)samples_quantile(samples, 0.5) / (double)NS_PER_MS,
               (double)samples_quantile(samples, 1) / (double)NS_PER_MS);
        if (json != NULL)
            samples_print_json(samples, json, i == 2);
        free(samples->ns);
    }
    if (json != NULL) {
        fprintf(json, "}}\n");
        fclose(json);
    }
}

int main(int argc, char **argv) {
    static const struct option known[] = {{"gpu", required_argument, NULL, 'g'},
                                          {"size", required_argument, NULL, 's'},
                                          {"buffers", required_argument, NULL, 'b'},
                                          {"rounds", required_argument, NULL, 'r'},
                                          {"json", required_argument, NULL, 'j'},
                                          {"role", required_argument, NULL, 'o'},
                                          {0}};
    static const char *const names[] = {"change", "sleep", "wake"};
    static struct publisher publisher = {.count = 16};
    uint64_t size_bytes = UINT64_C(4) << 30;
    unsigned rounds = 7;
    const char *gpu = "cuda";
    FILE *json = NULL;
    int option;

    while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (option == 'o')
            return read_generations();
        if (option == 'g' && (strcmp(optarg, "cuda") == 0 || strcmp(optarg, "sim") == 0))
            gpu = optarg;
        else if (option == 's' && (size_bytes = strtoull(optarg, NULL, 10)) >= BUFFERS_MAX * NAME_GRAPH_BYTES)
            continue;
        else if (option == 'b' && (publisher.count = strtoul(optarg, NULL, 10)) > 0 &&
                 publisher.count <= BUFFERS_MAX)
            continue;
        else if (option == 'r' && (rounds = (unsigned)strtoul(optarg, NULL, 10)) > 0)
            continue;
        else if (option == 'j' && (json = fopen(optarg, "we")) != NULL)
            continue;
        else {
            fprintf(stderr, "usage: name_readers [--gpu cuda|sim] [--size BYTES] [--buffers N] [--rounds N] "
                            "[--json FILE]\n");
            return 2;
        }
    }
    publisher.size_bytes = size_bytes / publisher.count;
    for (unsigned i = 0; i < 3; i++)
        samples_init(&publisher.samples[i], names[i], rounds);
    begin(&publisher, gpu);
    for (unsigned i = 0; i <= rounds; i++)
        play_round(&publisher, 2 + (int)(2 * i % 250), i > 0);
    printf("%zu buffers of %" PRIu64 " bytes, %u rounds, GPU: %s\n", publisher.count, publisher.size_bytes,
           rounds, gpu);
    report(&publisher, json);
    return end(&publisher);
}
