/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The workers: a loader that brings files into device buffers, a writer that takes them out again, a holder
 * that only holds buffers until it is killed, and an echo that answers on a socket to show what a round trip
 * costs.
 *
 * A chunk's way: the loader reads it into a pinned host buffer, has the GPU copy it into a device buffer,
 * waits for that copy, and shares the device buffer. The writer attaches the token, has the GPU copy the
 * contents into a pinned buffer of its own, releases the device buffer and says so; then the loader releases
 * it too, and the memory is free.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay.h"

#define DEVICE 0 /* the first GPU that this process sees */

struct worker {
    struct gpupool_client *client;
    uint32_t device_pool, host_pool;
};

static int worker_open(struct worker *worker) {
    *worker = (struct worker){0};
    if (gpupool_open(NULL, &worker->client) < 0)
        return fail_gpupool("connecting");
    if (gpupool_device_pool(worker->client, DEVICE, &worker->device_pool) < 0)
        return fail_gpupool("finding the device pool");
    if (gpupool_host_pool(worker->client, -1, &worker->host_pool) < 0)
        return fail_gpupool("finding the host pool");
    return 0;
}

/* --- the loader --- */

enum slot_state {
    SLOT_EMPTY,
    SLOT_COPYING, /* read, and on its way to the device */
    SLOT_SENT,    /* with the writer */
};

/* One chunk that the loader has in hand. */
struct slot {
    enum slot_state state;
    void *stream;
    struct gpupool_buffer host, device;
    struct parcel parcel;
};

struct loader {
    struct worker worker;
    int parcels_fd, acknowledgements_fd;
    struct slot slots[CHUNKS_UNDERWAY];
    struct work_report report;
};

/* Waits until the chunk is on the device, and hands it to the writer. */
static int slot_send(struct loader *loader, struct slot *slot) {
    struct gpupool_client *client = loader->worker.client;

    if (slot->state != SLOT_COPYING)
        return 0;
    if (gpupool_stream_synchronize(client, DEVICE, slot->stream) < 0)
        return fail_gpupool("copying to the device");
    if (gpupool_release(client, &slot->host, GPUPOOL_NO_STREAM) < 0)
        return fail_gpupool("releasing a host buffer");
    if (gpupool_share(client, &slot->device, GPUPOOL_NO_STREAM, &slot->parcel.token) < 0)
        return fail_gpupool("sharing a device buffer");
    if (write_whole(loader->parcels_fd, &slot->parcel, sizeof slot->parcel) < 0)
        return fail_system("sending to the writer");
    slot->state = SLOT_SENT;
    return 0;
}

/* Waits until the writer has the chunk, and gives the device buffer back. Parcels are taken in order. */
static int slot_empty(struct loader *loader, struct slot *slot) {
    uint64_t number;

    if (slot_send(loader, slot) < 0)
        return -1;
    if (slot->state == SLOT_EMPTY)
        return 0;
    if (read_whole(loader->acknowledgements_fd, &number, sizeof number) != 1)
        return fail("the writer is gone");
    if (number != slot->parcel.number)
        return fail("the writer confirmed parcel %llu instead of %llu", (unsigned long long)number,
                    (unsigned long long)slot->parcel.number);
    if (gpupool_release(loader->worker.client, &slot->device, slot->stream) < 0)
        return fail_gpupool("releasing a device buffer");
    slot->state = SLOT_EMPTY;
    return 0;
}

/* Reads a chunk and sends it on its way to the device. Returns 1, or 0 at the file's end. */
static int slot_fill(struct loader *loader, struct slot *slot, int fd, const char *path, uint32_t file,
                     uint64_t offset_bytes) {
    struct gpupool_client *client = loader->worker.client;
    uint64_t size = 0;

    if (gpupool_acquire(client, loader->worker.host_pool, CHUNK_BYTES, slot->stream, ROOM_NS, 0,
                        &slot->host) < 0)
        return fail_gpupool("acquiring a host buffer");
    while (size < CHUNK_BYTES) {
        ssize_t n = read(fd, (char *)slot->host.data + size, CHUNK_BYTES - size);
        if (n < 0 && errno != EINTR)
            return fail_system("reading %s", path);
        if (n == 0)
            break;
        if (n > 0)
            size += (uint64_t)n;
    }
    if (size == 0) {
        if (gpupool_release(client, &slot->host, GPUPOOL_NO_STREAM) < 0)
            return fail_gpupool("releasing a host buffer");
        return 0;
    }
    if (gpupool_acquire(client, loader->worker.device_pool, size, slot->stream, ROOM_NS, 0, &slot->device) <
        0)
        return fail_gpupool("acquiring a device buffer");
    if (gpupool_copy(client, DEVICE, slot->device.data, slot->host.data, size, slot->stream) < 0)
        return fail_gpupool("copying to the device");
    slot->parcel = (struct parcel){
        .number = loader->report.parcels++, .file = file, .offset_bytes = offset_bytes, .size_bytes = size};
    slot->state = SLOT_COPYING;
    loader->report.size_bytes += size;
    return 1;
}

static struct slot *loader_slot(struct loader *loader, uint64_t number) {
    return &loader->slots[number % CHUNKS_UNDERWAY];
}

static int load_file(struct loader *loader, const char *path, uint32_t file) {
    int r = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return fail_system("opening %s", path);
    for (uint64_t offset = 0; r > 0;) {
        uint64_t number = loader->report.parcels;
        struct slot *slot = loader_slot(loader, number);
        r = slot_empty(loader, slot);
        if (r == 0)
            r = slot_fill(loader, slot, fd, path, file, offset);
        offset += CHUNK_BYTES;
        /* While this chunk is on its way to the device, the one before it has arrived. */
        if (r >= 0 && number > 0 && slot_send(loader, loader_slot(loader, number - 1)) < 0)
            r = -1;
    }
    close(fd);
    return r;
}

/* loader PARCELS ACKNOWLEDGEMENTS REPORT FILE… */
static int loader_main(int argc, char **argv) {
    struct loader loader = {.parcels_fd = atoi(argv[0]), .acknowledgements_fd = atoi(argv[1])};
    int report_fd = atoi(argv[2]);

    if (worker_open(&loader.worker) < 0)
        return -1;
    struct gpupool_client *client = loader.worker.client;
    for (unsigned i = 0; i < CHUNKS_UNDERWAY; i++)
        if (gpupool_stream_create(client, DEVICE, &loader.slots[i].stream) < 0)
            return fail_gpupool("creating a stream");
    loader.report.begin_ns = now_ns();
    for (int i = 3; i < argc; i++)
        if (load_file(&loader, argv[i], (uint32_t)(i - 3)) < 0)
            return -1;
    for (uint64_t n = 0; n < CHUNKS_UNDERWAY;
         n++) /* in order: the oldest is the one that would be filled next */
        if (slot_empty(&loader, loader_slot(&loader, loader.report.parcels + n)) < 0)
            return -1;
    loader.report.end_ns = now_ns();
    for (unsigned i = 0; i < CHUNKS_UNDERWAY; i++)
        if (gpupool_stream_destroy(client, DEVICE, loader.slots[i].stream) < 0)
            return fail_gpupool("destroying a stream");
    gpupool_close(client);
    return write_whole(report_fd, &loader.report, sizeof loader.report) < 0 ? fail_system("reporting") : 0;
}

/* --- the writer --- */

struct writer {
    struct worker worker;
    void *stream;
    int parcels_fd, acknowledgements_fd;
    const char *directory;
    uint32_t files;
    int fd; /* of the file at hand, -1: none */
    uint32_t file;
    struct work_report report;
};

/* Turns to the next file, in order: also those that no parcel speaks of, because they are empty, are made. */
static int writer_turn_to(struct writer *writer, uint32_t file) {
    char path[COPY_PATH_SIZE];

    while (writer->fd < 0 || writer->file < file) {
        uint32_t next = writer->fd < 0 ? 0 : writer->file + 1;
        if (writer->fd >= 0 && close(writer->fd) < 0)
            return fail_system("closing a copy");
        writer->fd =
            open(copy_path(writer->directory, next, path), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (writer->fd < 0)
            return fail_system("making %s", path);
        writer->file = next;
    }
    return 0;
}

static int take_parcel(struct writer *writer, const struct parcel *parcel) {
    struct gpupool_client *client = writer->worker.client;
    struct gpupool_buffer device, host;

    if (parcel->file >= writer->files || (writer->fd >= 0 && parcel->file < writer->file))
        return fail("a parcel of file %u, out of order", parcel->file);
    if (gpupool_attach(client, &parcel->token, GPUPOOL_NO_STREAM, 0, &device) < 0)
        return fail_gpupool("attaching a device buffer");
    if (device.size_bytes != parcel->size_bytes)
        return fail("the buffer is not of the parcel's size");
    if (gpupool_acquire(client, writer->worker.host_pool, parcel->size_bytes, writer->stream, ROOM_NS, 0,
                        &host) < 0)
        return fail_gpupool("acquiring a host buffer");
    if (gpupool_copy(client, DEVICE, host.data, device.data, parcel->size_bytes, writer->stream) < 0)
        return fail_gpupool("copying from the device");
    if (gpupool_stream_synchronize(client, DEVICE, writer->stream) < 0)
        return fail_gpupool("copying from the device");
    /* The GPU is done with both: nothing is left that their next use would have to wait for. */
    if (gpupool_release(client, &device, GPUPOOL_NO_STREAM) < 0)
        return fail_gpupool("releasing a device buffer");
    if (write_whole(writer->acknowledgements_fd, &parcel->number, sizeof parcel->number) < 0)
        return fail_system("answering the loader");

    if (writer_turn_to(writer, parcel->file) < 0)
        return -1;
    for (uint64_t done = 0; done < parcel->size_bytes;) {
        ssize_t n = pwrite(writer->fd, (char *)host.data + done, parcel->size_bytes - done,
                           (off_t)(parcel->offset_bytes + done));
        if (n < 0 && errno != EINTR)
            return fail_system("writing a copy into %s", writer->directory);
        if (n > 0)
            done += (uint64_t)n;
    }
    if (gpupool_release(client, &host, GPUPOOL_NO_STREAM) < 0)
        return fail_gpupool("releasing a host buffer");
    writer->report.size_bytes += parcel->size_bytes;
    writer->report.parcels++;
    return 0;
}

/* writer PARCELS ACKNOWLEDGEMENTS REPORT DIRECTORY FILES */
static int writer_main(int argc, char **argv) {
    struct writer writer = {.parcels_fd = atoi(argv[0]),
                            .acknowledgements_fd = atoi(argv[1]),
                            .directory = argv[3],
                            .files = (uint32_t)atoi(argv[4]),
                            .fd = -1};
    int report_fd = atoi(argv[2]);
    struct parcel parcel;
    int r;
    (void)argc;

    if (worker_open(&writer.worker) < 0)
        return -1;
    struct gpupool_client *client = writer.worker.client;
    if (gpupool_stream_create(client, DEVICE, &writer.stream) < 0)
        return fail_gpupool("creating a stream");
    writer.report.begin_ns = now_ns();
    while ((r = read_whole(writer.parcels_fd, &parcel, sizeof parcel)) > 0)
        if (take_parcel(&writer, &parcel) < 0)
            return -1;
    if (r < 0)
        return fail_system("reading parcels");
    if (writer_turn_to(&writer, writer.files - 1) < 0)
        return -1;
    if (close(writer.fd) < 0)
        return fail_system("closing a copy");
    writer.report.end_ns = now_ns();
    if (gpupool_stream_destroy(client, DEVICE, writer.stream) < 0)
        return fail_gpupool("destroying a stream");
    gpupool_close(client);
    return write_whole(report_fd, &writer.report, sizeof writer.report) < 0 ? fail_system("reporting") : 0;
}

/* --- the holder --- */

#define HELD_DEVICE_BYTES (48 * MIB)
#define HELD_HOST_BYTES   (24 * MIB)

/* holder REPORT */
static int holder_main(int argc, char **argv) {
    struct holdings held = {.device_bytes = HELD_DEVICE_BYTES, .host_bytes = HELD_HOST_BYTES};
    struct gpupool_buffer device, host;
    struct worker worker;
    void *stream;
    (void)argc;

    if (worker_open(&worker) < 0)
        return -1;
    struct gpupool_client *client = worker.client;
    if (gpupool_stream_create(client, DEVICE, &stream) < 0)
        return fail_gpupool("creating a stream");
    if (gpupool_acquire(client, worker.device_pool, held.device_bytes, stream, ROOM_NS, GPUPOOL_ZERO,
                        &device) < 0)
        return fail_gpupool("acquiring a device buffer");
    if (gpupool_acquire(client, worker.host_pool, held.host_bytes, NULL, ROOM_NS, 0, &host) < 0)
        return fail_gpupool("acquiring a host buffer");
    memset(host.data, 0x5a, held.host_bytes);
    if (gpupool_copy(client, DEVICE, device.data, host.data, held.host_bytes, stream) < 0 ||
        gpupool_stream_synchronize(client, DEVICE, stream) < 0)
        return fail_gpupool("using the buffers");
    if (gpupool_share(client, &device, GPUPOOL_NO_STREAM, &held.device) < 0 ||
        gpupool_share(client, &host, GPUPOOL_NO_STREAM, &held.host) < 0)
        return fail_gpupool("sharing the buffers");
    if (write_whole(atoi(argv[0]), &held, sizeof held) < 0)
        return fail_system("reporting");
    for (;;) /* until it is killed */
        pause();
}

/* --- the echo --- */

/* echo SOCKET */
static int echo_main(int argc, char **argv) {
    int fd = atoi(argv[0]);
    char packet[256];
    ssize_t n;
    (void)argc;

    while ((n = recv(fd, packet, sizeof packet, 0)) > 0)
        if (send(fd, packet, (size_t)n, MSG_NOSIGNAL) != n)
            return fail_system("answering");
    return n < 0 ? fail_system("receiving") : 0;
}

int worker_main(int argc, char **argv) {
    static const struct {
        const char *name, *role;
        int arguments; /* at least */
        int (*main)(int argc, char **argv);
    } workers[] = {
        {"loader", "relay loader", 4, loader_main},
        {"writer", "relay writer", 5, writer_main},
        {"holder", "relay holder", 1, holder_main},
        {"echo", "relay echo", 1, echo_main},
    };

    /* Not to outlive the program that started it, however that ends. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < sizeof workers / sizeof *workers; i++)
        if (argc > 0 && strcmp(argv[0], workers[i].name) == 0 && argc - 1 >= workers[i].arguments) {
            relay_role = workers[i].role;
            prctl(PR_SET_NAME, relay_role); /* the name that the daemon's stats show */
            return workers[i].main(argc - 1, argv + 1) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
        }
    fail("--worker is for the program's own use");
    return EXIT_FAILURE;
}
