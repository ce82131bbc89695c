/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of <gpupool/names.hpp>. */
#include <gpupool/names.hpp>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

using gpupool::opened_name;
static_assert(std::is_nothrow_default_constructible_v<opened_name> && std::is_nothrow_move_constructible_v<opened_name> &&
              std::is_nothrow_move_assignable_v<opened_name> && std::is_nothrow_destructible_v<opened_name> &&
              !std::is_copy_constructible_v<opened_name> && !std::is_copy_assignable_v<opened_name>);

static const std::uint64_t size_bytes = 1 << 20;

static void check(bool holds, const char *what) {
    if (!holds)
        throw std::runtime_error(std::string(what) + " does not hold; the last error is: " + gpupool_error_text());
}
#define CHECK(condition) check(static_cast<bool>(condition), #condition)

/* Publishes a buffer of bytes, which goes at once. */
static std::uint64_t publish(const gpupool::client &client, const char *name, char byte, std::uint32_t flags) {
    gpupool::buffer buffer = client.host_pool().acquire(size_bytes, gpupool::no_stream);
    std::memset(buffer.data(), byte, size_bytes);
    return gpupool::publish(client, name, {&buffer}, gpupool::no_stream, flags, "a directory");
}

static void a_name_is_opened_and_closes_by_itself() {
    gpupool::client publisher = gpupool::client::open(), reader = gpupool::client::open();
    std::uint64_t generation = publish(publisher, "one", 1, 0);
    opened_name name = opened_name::open(reader, "one", gpupool::no_stream);
    CHECK(name && name.size() == 1 && name.generation() == generation && name.directory() == "a directory");
    CHECK(name.flags() == 0 && name.layout() != 0 && name.end() == name.begin() + 1);
    CHECK(static_cast<const char *>(name[0].data)[size_bytes - 1] == 1);
    opened_name moved = std::move(name);
    CHECK(!name && name.size() == 0 && name.begin() == nullptr && name.directory().empty());
    name = std::move(moved);
    CHECK(publish(publisher, "one", 2, GPUPOOL_NAME_SAME_LAYOUT) > generation);
    CHECK(gpupool::watch_name(reader, "one", generation, gpupool::now) > generation);
    CHECK(static_cast<const char *>(name[0].data)[0] == 1);
    name = opened_name::open(reader, "one", gpupool::no_stream);
    CHECK(static_cast<const char *>(name[0].data)[0] == 2);
    name.close();
    CHECK(!name);
    gpupool::unpublish(publisher, "one");
    CHECK(opened_name::try_open(reader, "one", gpupool::no_stream).error().number() == GPUPOOL_E_NO_NAME);
}

static void one_builds() {
    gpupool::client builder = gpupool::client::open(), other = gpupool::client::open();
    CHECK(!opened_name::open_or_build(builder, "built", gpupool::no_stream));
    CHECK(opened_name::try_open_or_build(other, "built", gpupool::no_stream, gpupool::now).error().number() ==
          GPUPOOL_E_NO_NAME);
    gpupool::abandon_name(builder, "built");
    CHECK(!opened_name::open_or_build(other, "built", gpupool::no_stream));
    publish(other, "built", 3, GPUPOOL_NAME_KEEP);
    CHECK(opened_name::open_or_build(builder, "built", gpupool::no_stream).flags() == GPUPOOL_NAME_KEEP);
    gpupool::unpublish(builder, "built");
}

/* On a pool whose segments are descriptors. Elsewhere no buffer can sleep, and no name. */
static void a_name_sleeps_and_wakes_with_the_next_generation() {
    gpupool::client publisher = gpupool::client::open(), reader = gpupool::client::open();
    std::uint64_t first = publish(publisher, "host", 1, 0);
    CHECK(
        opened_name::try_open(reader, "host", gpupool::no_stream, gpupool::now, first, GPUPOOL_NAME_CAN_SLEEP)
            .error()
            .number() == GPUPOOL_E_INVALID);
    opened_name host = opened_name::open(reader, "host", gpupool::no_stream);
    CHECK(host.try_sleep().error().number() == GPUPOOL_E_INVALID);
    CHECK(host.try_wake(0, gpupool::no_stream).error().number() == GPUPOOL_E_INVALID);
    CHECK(opened_name().try_sleep(gpupool::no_stream).error().number() == GPUPOOL_E_INVALID);
    if (gpupool_gpu_kind(publisher.get()) == GPUPOOL_GPU_NONE)
        return;
    gpupool::result<gpupool::buffer> acquired = publisher.device_pool(0).try_acquire(
        size_bytes, gpupool::no_stream, gpupool::forever, GPUPOOL_CAN_SLEEP);
    CHECK(acquired || acquired.error().number() == GPUPOOL_E_INVALID);
    if (!acquired)
        return;
    gpupool::buffer buffer = std::move(acquired).value();
    first = gpupool::publish(publisher, "sleeps", {&buffer}, gpupool::no_stream);
    opened_name name =
        opened_name::open(reader, "sleeps", gpupool::no_stream, gpupool::now, 0, GPUPOOL_NAME_CAN_SLEEP);
    const void *data = name[0].data;
    name.sleep();
    CHECK(name.try_wake(first + 1, gpupool::no_stream, gpupool::now).error().number() == GPUPOOL_E_NO_NAME);
    std::uint64_t second =
        gpupool::publish(publisher, "sleeps", {&buffer}, gpupool::no_stream, GPUPOOL_NAME_SAME_LAYOUT);
    name.wake(second, gpupool::no_stream);
    CHECK(name.generation() == second && name[0].data == data);
    name.sleep(gpupool::no_stream); /* the destructor closes one that sleeps */
}

/* Its buffers went with the client. */
static void what_outlives_its_client_is_harmless() {
    opened_name name;
    {
        gpupool::client client = gpupool::client::open();
        publish(client, "short", 4, 0);
        name = opened_name::open(client, "short", gpupool::no_stream);
    }
    CHECK(name);
    name.close();
    CHECK(!name);
}

int main() {
    try {
        a_name_is_opened_and_closes_by_itself();
        one_builds();
        a_name_sleeps_and_wakes_with_the_next_generation();
        what_outlives_its_client_is_harmless();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    std::printf("names in C++\n");
    return 0;
}
