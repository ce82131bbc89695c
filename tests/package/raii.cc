/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of <gpupool/gpupool.hpp>: what gives back, when, and what no object gives back twice. */
#include <gpupool/gpupool.hpp>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <utility>
#include <vector>

template <typename T> constexpr bool is_owner() {
    return std::is_nothrow_default_constructible_v<T> && std::is_nothrow_move_constructible_v<T> &&
           std::is_nothrow_move_assignable_v<T> && std::is_nothrow_destructible_v<T> && !std::is_copy_constructible_v<T> &&
           !std::is_copy_assignable_v<T>;
}
static_assert(is_owner<gpupool::client>() && is_owner<gpupool::buffer>() && is_owner<gpupool::stream>() &&
              is_owner<gpupool::parcel>());
static_assert(std::is_trivially_copyable_v<gpupool::token> && gpupool::token::size() == 64);
static_assert(std::is_base_of_v<std::system_error, gpupool::error>);
template <typename T> constexpr bool names_stream = std::is_convertible_v<T, gpupool::stream_ref>;
static_assert(names_stream<CUstream_st *> && names_stream<void *> && names_stream<std::nullptr_t>);
static_assert(!names_stream<gpupool_buffer *> && !names_stream<char *>);

static const std::uint64_t size_bytes = 1 << 20;

static void check(bool holds, const char *what) {
    if (!holds)
        throw std::runtime_error(std::string(what) + " does not hold; the last error is: " + gpupool_error_text());
}
#define CHECK(condition) check(static_cast<bool>(condition), #condition)

/* The number of the error that a call throws; 0: none. */
template <typename Call> static int thrown_by(Call &&call) {
    try {
        call();
    } catch (const gpupool::error &error) {
        return error.number();
    }
    return 0;
}

/* A client whose buffers are leases of their own, so that they can be counted. */
static gpupool::client open_without_cache() {
    gpupool::options options;
    options.flags = GPUPOOL_OPEN_NO_CACHE;
    return gpupool::client::open(options);
}

/* The bytes that all processes have leased of all pools. */
static std::uint64_t leased(const gpupool::client &client) {
    std::uint64_t bytes = 0;
    for (const gpupool_pool &pool : client.pools())
        bytes += pool.leased_bytes;
    return bytes;
}

static gpupool::buffer acquire(const gpupool::client &client) {
    return client.host_pool().acquire(size_bytes, gpupool::no_stream);
}

static void a_buffer_gives_itself_back_once() {
    gpupool::client client = open_without_cache();
    {
        gpupool::buffer first = acquire(client);
        CHECK(first && first.data() != nullptr && first.size() == size_bytes && first.is_host() && first.device() == -1);
        gpupool::buffer second = std::move(first);
        CHECK(!first && first.data() == nullptr && second);
        first.release();
        CHECK(leased(client) == size_bytes);
        second = acquire(client); /* gives the old one back */
        CHECK(leased(client) == size_bytes);
        std::vector<gpupool::buffer> many;
        for (int i = 0; i < 5; i++)
            many.push_back(acquire(client));
        CHECK(leased(client) == 6 * size_bytes);
        second.release();
        second.release(gpupool::no_stream);
        CHECK(!second && leased(client) == 5 * size_bytes);
    }
    CHECK(leased(client) == 0);
}

static void a_buffer_is_handed_to_the_c_interface_and_taken_from_it() {
    gpupool::client client = open_without_cache();
    gpupool::buffer buffer = acquire(client);
    gpupool_buffer raw = buffer.take();
    CHECK(!buffer && buffer.take().data == nullptr && raw.size_bytes == size_bytes);
    CHECK(leased(client) == size_bytes);
    buffer = gpupool::buffer::adopt(client, raw, gpupool::no_stream);
    CHECK(buffer.get().data == raw.data);
    buffer.release();
    CHECK(leased(client) == 0);
    /* A copy of the raw buffer is stale: to release it is an error, and to drop it is none. */
    gpupool::buffer stale = gpupool::buffer::adopt(client, raw, gpupool::no_stream);
    CHECK(thrown_by([&] { stale.release(); }) == GPUPOOL_E_STALE && stale.data() == raw.data);
}

static void what_outlives_its_client_is_harmless() {
    gpupool::client first = open_without_cache();
    gpupool::pool pool = first.host_pool();
    gpupool::stream stream = gpupool::stream::create(first);
    gpupool::buffer buffer = acquire(first), sent = acquire(first);
    gpupool::parcel parcel = sent.send(gpupool::no_stream);
    first.close();
    CHECK(!first && !buffer && !stream && !parcel && first.get() == nullptr);
    first.close();
    CHECK(thrown_by([&] { static_cast<void>(pool.acquire(1, gpupool::no_stream)); }) == GPUPOOL_E_INVALID);
    CHECK(thrown_by([&] { static_cast<void>(first.host_pool()); }) == GPUPOOL_E_INVALID);
    CHECK(thrown_by([&] { stream.synchronize(); }) == GPUPOOL_E_INVALID);
    CHECK(thrown_by([&] { static_cast<void>(buffer.share(gpupool::no_stream)); }) == GPUPOOL_E_INVALID);
    /* The next client is another one, also where the objects find it at the same place. */
    gpupool::client second = open_without_cache();
    gpupool::buffer other = acquire(second);
    CHECK(!buffer && thrown_by([&] { static_cast<void>(pool.acquire(1, gpupool::no_stream)); }) == GPUPOOL_E_INVALID);
    buffer.release();
    stream.destroy();
    parcel.revoke();
    CHECK(leased(second) == 2 * size_bytes); /* the other one, and the parcel that was not revoked */
    CHECK(second.attach(parcel.get(), gpupool::no_stream).size() == size_bytes);
}

static void a_client_that_moves_keeps_its_objects() {
    gpupool::client client = open_without_cache(), other;
    gpupool::buffer buffer = acquire(client);
    other = std::move(client);
    CHECK(!client && other && other.is_connected() && !client.is_connected() && buffer);
    buffer.release();
    CHECK(leased(other) == 0);
    buffer = acquire(other);
    other = open_without_cache(); /* the first one closes */
    CHECK(!buffer && other);
    gpupool_client *raw = other.take();
    CHECK(!other && raw != nullptr && gpupool_is_connected(raw) == 1);
    {
        gpupool::client lent = gpupool::client::borrow(raw);
        buffer = acquire(lent);
        CHECK(buffer);
    }
    CHECK(buffer && leased(gpupool::client::borrow(raw)) == size_bytes);
    buffer.release();
    CHECK(leased(gpupool::client::borrow(raw)) == 0 && gpupool_is_connected(raw) == 1);
    other = gpupool::client::adopt(raw);
    CHECK(other.get() == raw);
}

/* The default client stays open, so what a temporary object of it made stays, and gives itself back. */
static void buffers_outlive_an_object_of_the_default_client() {
    gpupool_client *process = gpupool::client::open_default().get();
    CHECK(gpupool::client::open_default().get() == process && gpupool_is_connected(process) == 1);
    {
        gpupool::buffer buffer = acquire(gpupool::client::open_default());
        gpupool::client named = gpupool::client::open_default();
        gpupool::stream stream = gpupool::stream::create(named);
        named.close();
        CHECK(!named && buffer && buffer.query().holders == 1 && stream);
        stream.synchronize();
        CHECK(!stream.is_captured());
    }
    gpupool::client client = gpupool::client::open_default();
    client.synchronize(0);
    static_cast<void>(client.trim());
    CHECK(leased(client) == 0);
    gpupool_close(process);
}

static void failures_are_exceptions_or_values() {
    gpupool::client client = open_without_cache();
    gpupool::pool pool = client.host_pool();
    try {
        static_cast<void>(pool.acquire(UINT64_MAX / 2, gpupool::no_stream));
        check(false, "that an exception was thrown");
    } catch (const std::system_error &error) {
        CHECK(error.code() == std::errc::not_enough_memory && error.code().value() == GPUPOOL_E_TOO_LARGE);
        CHECK(std::strstr(error.what(), "GPUPOOL_E_TOO_LARGE") != nullptr);
        CHECK(std::strstr(error.what(), "pool") != nullptr);
    }
    gpupool::result<gpupool::buffer> failed = pool.try_acquire(UINT64_MAX / 2, gpupool::no_stream);
    CHECK(!failed && failed.error().number() == GPUPOOL_E_TOO_LARGE && failed.error().text() == gpupool_error_text());
    CHECK(std::string(failed.error().name()) == "GPUPOOL_E_TOO_LARGE");
    CHECK(thrown_by([&] { static_cast<void>(failed.value()); }) == GPUPOOL_E_TOO_LARGE);
    gpupool::result<gpupool::buffer> done = pool.try_acquire(size_bytes, gpupool::no_stream);
    CHECK(done && done->size() == size_bytes && (*done).try_release() && !*done);
    gpupool::options options;
    options.socket = "/nonexistent/socket";
    gpupool::result<gpupool::client> nowhere = gpupool::client::try_open(options);
    CHECK(!nowhere && nowhere.error().number() == GPUPOOL_E_CONNECT);
    CHECK(thrown_by([&] { static_cast<void>(gpupool::client::open(options)); }) == GPUPOOL_E_CONNECT);
}

static void a_parcel_that_is_not_handed_on_is_revoked() {
    gpupool::client client = open_without_cache();
    gpupool::token dropped, kept;
    {
        gpupool::buffer buffer = acquire(client);
        std::memset(buffer.data(), 'x', size_bytes);
        gpupool::parcel parcel = buffer.send(gpupool::no_stream), moved = std::move(parcel);
        CHECK(!parcel && moved);
        dropped = moved.get();
        gpupool::parcel other = buffer.send(gpupool::no_stream);
        kept = other.hand_on();
        CHECK(!other && kept != dropped && kept == other.get());
    }
    CHECK(thrown_by([&] { static_cast<void>(client.attach(dropped, gpupool::no_stream)); }) == GPUPOOL_E_NO_TOKEN);
    gpupool::token received; /* as bytes */
    std::memcpy(received.data(), kept.data(), kept.size());
    gpupool::buffer attached = client.attach(received, gpupool::no_stream);
    CHECK(attached.as<char>()[size_bytes - 1] == 'x');
    CHECK(thrown_by([&] { client.revoke(received); }) == GPUPOOL_E_NO_TOKEN);
    gpupool::parcel last = attached.send(gpupool::no_stream, 2, std::chrono::seconds(30));
    last.revoke();
    last.revoke();
    attached.release();
    CHECK(leased(client) == 0);
}

/* On a pool whose segments are descriptors. Elsewhere no buffer can sleep. */
static void a_buffer_sleeps_and_wakes_where_it_was() {
    gpupool::client client = open_without_cache();
    gpupool::buffer host = acquire(client);
    CHECK(thrown_by([&] { host.sleep(GPUPOOL_KEEP_NOTHING, gpupool::no_stream); }) == GPUPOOL_E_INVALID);
    CHECK(thrown_by([&] { host.wake(gpupool::no_stream); }) == GPUPOOL_E_INVALID);
    if (gpupool_gpu_kind(client.get()) == GPUPOOL_GPU_NONE)
        return;
    gpupool::buffer buffer;
    int error = thrown_by([&] {
        buffer = client.device_pool(0).acquire(size_bytes, gpupool::no_stream, gpupool::forever, GPUPOOL_CAN_SLEEP);
    });
    CHECK(error == 0 || error == GPUPOOL_E_INVALID);
    if (error != 0)
        return;
    const void *data = buffer.data();
    buffer.sleep(GPUPOOL_KEEP_IN_HOST, gpupool::no_stream);
    CHECK(thrown_by([&] { static_cast<void>(buffer.query()); }) == GPUPOOL_E_INVALID);
    buffer.wake(gpupool::no_stream);
    CHECK(buffer.data() == data && buffer.query().buffer.lease == buffer.get().lease);
    buffer.sleep(GPUPOOL_KEEP_NOTHING, gpupool::no_stream); /* the destructor gives back a sleeper */
}

static void a_shared_buffer_says_when_others_have_it() {
    gpupool::client writer = open_without_cache(), reader = open_without_cache();
    gpupool::buffer buffer = acquire(writer);
    gpupool::buffer taken = reader.attach(buffer.share(gpupool::no_stream), gpupool::no_stream);
    CHECK(buffer.query().holders == 2);
    CHECK(thrown_by([&] { buffer.reuse(gpupool::no_stream); }) == GPUPOOL_E_SHARED);
    taken.release();
    buffer.reuse(gpupool::no_stream);
    gpupool::buffer tail = acquire(writer);
    tail.shrink(512, gpupool::no_stream);
    CHECK(tail.size() == 512);
}

static void a_stream_ends_behind_its_work() {
    gpupool::client client = open_without_cache();
    gpupool::buffer host = acquire(client), back = acquire(client);
    {
        gpupool::stream stream = gpupool::stream::create(client), second = gpupool::stream::create(client);
        gpupool::buffer device = client.device_pool(0).acquire(64 * size_bytes, stream, gpupool::forever);
        CHECK(device.device() == 0 && device.used_on().get() == stream.get());
        std::memset(host.data(), 'y', size_bytes);
        for (int i = 0; i < 20; i++)
            stream.set(device.data(), i, device.size()); /* which takes a while */
        stream.copy(device.data(), host.data(), size_bytes);
        stream.copy(back.data(), device.data(), size_bytes);
        device.record_stream(second);
        device.use_on(second);
        device.release(stream);
        gpupool::stream moved = std::move(stream);
        CHECK(!stream && stream.get() == nullptr && moved.device() == 0);
        stream.destroy();
    }
    CHECK(std::memcmp(host.data(), back.data(), size_bytes) == 0); /* nothing has waited but the stream's end */
    void *raw = gpupool::stream::create(client).take();
    gpupool::stream again = gpupool::stream::adopt(client, 0, raw);
    client.set(0, host.data(), 0, size_bytes, again);
    client.copy(0, back.data(), host.data(), size_bytes, again);
    again.synchronize();
    again.destroy();
    CHECK(!again && back.as<char>()[5] == 0);
    host.release();
    back.release();
    CHECK(leased(client) == 0);
}

static void a_forked_child_gives_nothing_of_its_parent_back() {
    gpupool::client client = open_without_cache();
    gpupool::buffer buffer = acquire(client);
    pid_t pid = fork();
    if (pid == 0) {
        int number = thrown_by([&] { buffer.release(); });
        bool is_right = number == GPUPOOL_E_FORKED && !client.is_connected();
        buffer = gpupool::buffer();
        client.close();
        _exit(is_right ? 0 : 1);
    }
    int status = 1;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(buffer && leased(client) == size_bytes);
}

static void threads_share_a_client() {
    gpupool::client client = gpupool::client::open();
    gpupool::pool pool = client.host_pool();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([pool, i] {
            for (int round = 0; round < 500; round++) {
                gpupool::buffer buffer = pool.acquire(4096, gpupool::no_stream);
                std::memset(buffer.data(), i, buffer.size());
                gpupool::client other; /* places of clients are taken and kept beside each other */
                if (round % 100 == 0)
                    other = gpupool::client::open();
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    client.trim();
    CHECK(leased(client) == 0);
}

/* Destroyed after main(), in an order that a program does not see: the client may be gone. */
static gpupool::buffer outliving;
static gpupool::client process_client;

int main() {
    try {
        a_buffer_gives_itself_back_once();
        a_buffer_is_handed_to_the_c_interface_and_taken_from_it();
        what_outlives_its_client_is_harmless();
        a_client_that_moves_keeps_its_objects();
        buffers_outlive_an_object_of_the_default_client();
        failures_are_exceptions_or_values();
        a_parcel_that_is_not_handed_on_is_revoked();
        a_buffer_sleeps_and_wakes_where_it_was();
        a_shared_buffer_says_when_others_have_it();
        a_stream_ends_behind_its_work();
        a_forked_child_gives_nothing_of_its_parent_back();
        threads_share_a_client();
        process_client = open_without_cache();
        outliving = acquire(process_client);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    std::printf("objects in C++\n");
    return 0;
}
