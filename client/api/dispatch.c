/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls for a program's own loop, of a client that was opened with GPUPOOL_OPEN_NO_THREAD.
 */
#include "client/api/client.h"
#include "client/session/error.h"

static int enter(const struct gpupool_client *client) {
    int r = client_enter(client);
    if (r < 0)
        return r;
    return purger_has_loop(&client->cache.purger)
               ? 0
               : error_set(GPUPOOL_E_INVALID,
                           "the client was not opened with GPUPOOL_OPEN_NO_THREAD, or has no cache");
}

int gpupool_fd(struct gpupool_client *client) {
    int r = enter(client);
    return error_end(r < 0 ? error_prefix(r, "gpupool_fd") : client->cache.purger.watch_fd);
}

int gpupool_dispatch(struct gpupool_client *client) {
    int r = enter(client);
    if (r == 0) {
        requests_dispatch(client);
        r = purger_step(&client->cache);
    }
    return error_end(r < 0 ? error_prefix(r, "gpupool_dispatch") : 0);
}
