/* SPDX-License-Identifier: Apache-2.0 */
/* A worker for the system tests: takes a buffer from the host pool and one from device 0's, says "holding",
 * and keeps them until its standard input ends. Then it says farewell with the buffers still leased. The
 * daemon is the one that $GPUPOOL_SOCKET names. With $GPUPOOL_HOLDER_NAME the host buffer is published under
 * that name, and kept. */
#include <gpupool/gpupool.h>
#include <gpupool/names.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_BYTES (UINT64_C(1) << 20)

/* name: NULL: it is not published. */
static int publish(struct gpupool_client *client, const char *name, const struct gpupool_buffer *buffer) {
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;

    publication.flags = GPUPOOL_NAME_KEEP;
    publication.directory = "a directory";
    publication.directory_bytes = sizeof "a directory";
    return name == NULL ? 0 : gpupool_publish(client, name, buffer, 1, GPUPOOL_NO_STREAM, &publication, NULL);
}

int main(void) {
    struct gpupool_client *client = NULL;
    struct gpupool_buffer host, device;
    uint32_t host_pool, device_pool;

    if (gpupool_open(NULL, &client) < 0 || gpupool_host_pool(client, -1, &host_pool) < 0 ||
        gpupool_device_pool(client, 0, &device_pool) < 0 ||
        gpupool_acquire(client, host_pool, SIZE_BYTES, NULL, GPUPOOL_FOREVER, 0, &host) < 0 ||
        gpupool_acquire(client, device_pool, SIZE_BYTES, NULL, GPUPOOL_FOREVER, 0, &device) < 0) {
        fprintf(stderr, "holder: %s\n", gpupool_error_text());
        return 1;
    }
    memset(host.data, 1, SIZE_BYTES);
    if (publish(client, getenv("GPUPOOL_HOLDER_NAME"), &host) < 0) {
        fprintf(stderr, "holder: %s\n", gpupool_error_text());
        return 1;
    }
    puts("holding");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    gpupool_close(client);
    return 0;
}
