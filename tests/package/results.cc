/* SPDX-License-Identifier: Apache-2.0 */
/* <gpupool/gpupool.hpp> in a program without exceptions and without run-time type information: it has each call as one that
 * returns a result. */
#include <gpupool/channel.hpp>
#include <gpupool/gpupool.hpp>
#include <gpupool/names.hpp>

#include <cstdio>
#include <cstring>
#include <utility>

#if !defined(WITH_EXCEPTIONS) && (defined(__cpp_exceptions) || defined(__cpp_rtti))
#error "to be compiled with -fno-exceptions -fno-rtti"
#endif

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            std::fprintf(stderr, "%s does not hold; the last error is: %s\n", #condition, gpupool_error_text()); \
            return 1;                                                                                        \
        }                                                                                                    \
    } while (false)

static const std::uint64_t size_bytes = 65536;

static int use_stream(const gpupool::client &client, gpupool::buffer &host) {
    gpupool::result<gpupool::stream> stream = gpupool::stream::try_create(client);
    CHECK(stream);
    gpupool::result<gpupool::pool> pool = client.try_device_pool(0);
    CHECK(pool && pool->try_prepare(size_bytes));
    gpupool::result<gpupool::buffer> device = pool->try_acquire(size_bytes, *stream, gpupool::forever, GPUPOOL_ZERO);
    CHECK(device && device->try_record_stream(*stream));
    CHECK(stream->try_set(device->data(), 7, size_bytes));
    CHECK(stream->try_copy(host.data(), device->data(), size_bytes));
    CHECK(stream->try_is_captured() && !*stream->try_is_captured() && client.try_synchronize(0));
    CHECK(stream->try_synchronize() && host.as<char>()[size_bytes - 1] == 7);
    CHECK(client.try_set(0, host.data(), 8, size_bytes, *stream));
    CHECK(client.try_copy(0, device->data(), host.data(), size_bytes, *stream));
    gpupool::result<gpupool::token> token = device->try_share(*stream);
    CHECK(token);
    {
        gpupool::result<gpupool::buffer> attached = client.try_attach(*token, *stream);
        CHECK(attached && attached->size() == size_bytes);
        gpupool::result<void> reused = device->try_reuse(*stream);
        CHECK(!reused && reused.error().number() == GPUPOOL_E_SHARED && !reused.error().text().empty());
        gpupool::result<gpupool_buffer_info> info = device->try_query();
        CHECK(info && info->holders == 2);
    }
    CHECK(!device->try_sleep(GPUPOOL_KEEP_ON_GPU, *stream) && !device->try_wake(*stream)); /* without GPUPOOL_CAN_SLEEP */
    CHECK(device->try_send_held(*stream));
    gpupool::result<gpupool::parcel> parcel = device->try_send(*stream);
    CHECK(parcel);
    gpupool::parcel owned = std::move(parcel).value();
    CHECK(owned.try_revoke() && !owned);
    CHECK(!client.try_revoke(owned.get()));
    CHECK(device->try_release(*stream) && !*device && stream->try_destroy() && !*stream);
    return 0;
}

static int use_channel(const gpupool::client &client) {
    gpupool::channel_options options;
    options.slot_bytes = size_bytes;
    gpupool::result<gpupool::pool> pool = client.try_host_pool();
    CHECK(pool && gpupool::try_make_channel(client, "results", *pool, options));
    gpupool::result<gpupool::producer> producer = gpupool::producer::try_join(client, "results");
    gpupool::result<gpupool::consumer> consumer = gpupool::consumer::try_join(client, "results");
    CHECK(producer && consumer && producer->try_look() && consumer->try_fd());
    gpupool::result<gpupool::frame> loaned = producer->try_loan();
    CHECK(loaned && loaned->try_send(size_bytes));
    gpupool::result<gpupool::frame> received = consumer->try_receive();
    CHECK(received && received->size() == size_bytes && received->try_release());
    CHECK(producer->try_leave() && consumer->try_receive().error().number() == GPUPOOL_E_ENDED &&
          consumer->try_leave());
    CHECK(gpupool::try_unpublish(client, "results")); /* the client made it, and is open */
    return 0;
}

static int use_client() {
    gpupool::result<gpupool::client> opened = gpupool::client::try_open();
    CHECK(opened);
    gpupool::client client = std::move(*opened);
    CHECK(client.connection_state() == GPUPOOL_CONNECTION_THERE);
    CHECK(client.is_connected() && client.gpu_kind() == GPUPOOL_GPU_SIM && client.socket_path()[0] == '/');
    gpupool::result<gpupool::pool> pool = client.try_host_pool();
    CHECK(pool);
    gpupool::result<gpupool::buffer> failed = pool->try_acquire(0, gpupool::no_stream, gpupool::now);
    CHECK(!failed && failed.error().number() == GPUPOOL_E_INVALID);
    gpupool::result<gpupool::buffer> host = pool->try_acquire(size_bytes, gpupool::no_stream);
    CHECK(host && use_stream(client, *host) == 0);
    CHECK(use_channel(client) == 0);
    CHECK(host->try_shrink(512, gpupool::no_stream) && host->size() == 512);
    CHECK(host->try_release());
    CHECK(client.try_trim());
    gpupool::result<std::vector<gpupool_pool>> pools = client.try_pools();
    CHECK(pools && pools->size() >= 2);
    for (const gpupool_pool &one : *pools)
        CHECK(one.leased_bytes == 0);
    gpupool::result<gpupool::client> process = gpupool::client::try_open_default();
    CHECK(process && process->is_connected());
    return 0;
}

int main() {
    if (use_client() != 0)
        return 1;
    std::printf("results in C++\n");
    return 0;
}
