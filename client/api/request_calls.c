/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls on requests: acquires that complete on an eventfd, and that any thread can cancel. */
#include "base/cleanup.h"
#include "client/api/buffer.h"
#include "client/api/client.h"
#include "client/api/requests.h"
#include "client/session/error.h"

int gpupool_acquire_begin(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                          uint64_t timeout_ns, uint32_t flags, uint64_t *ret_request) {
    uint64_t number;

    int r = client_enter(client);
    if (r < 0)
        return r;
    if (ret_request == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_acquire_begin: ret_request is NULL");
    r = buffer_check_acquire("gpupool_acquire_begin", size_bytes, stream, flags);
    if (r < 0)
        return r;
    if (client->has_no_thread && !client->cache.enabled)
        return error_set(GPUPOOL_E_INVALID, "gpupool_acquire_begin: a client with GPUPOOL_OPEN_NO_THREAD has "
                                            "no loop without a cache, so nothing would complete the request");
    r = requests_begin(client, pool, size_bytes, stream, timeout_ns, flags, &number);
    if (r < 0)
        return error_end(buffer_fail_acquire(r, size_bytes, pool));
    *ret_request = number;
    return error_end(0);
}

int gpupool_request_fd(struct gpupool_client *client, uint64_t request) {
    int r = client_enter(client);
    if (r == 0)
        r = requests_fd(client, request);
    return error_end(r < 0 ? error_prefix(r, "gpupool_request_fd") : r);
}

int gpupool_request_cancel(struct gpupool_client *client, uint64_t request) {
    int r = client_enter(client);
    if (r == 0)
        r = requests_cancel(client, request);
    return error_end(r < 0 ? error_prefix(r, "gpupool_request_cancel") : 0);
}

int gpupool_acquire_end(struct gpupool_client *client, uint64_t request, struct gpupool_buffer *ret_buffer) {
    _cleanup_(open_request_freep) struct open_request *ended = NULL;

    int r = client_enter(client);
    if (r < 0)
        return r;
    if (ret_buffer == NULL)
        return error_set(GPUPOOL_E_INVALID, "gpupool_acquire_end: ret_buffer is NULL");
    r = requests_end(client, request, &ended);
    if (r < 0)
        return error_end(error_prefix(r, "gpupool_acquire_end"));
    r = ended->result < 0 ? error_set(ended->result, "%s", ended->text)
                          : buffer_finish(client, &ended->buffer, ended->stream, ended->flags);
    if (r < 0)
        return error_end(buffer_fail_acquire(r, ended->size_bytes, ended->pool));
    *ret_buffer = ended->buffer;
    return error_end(0);
}
