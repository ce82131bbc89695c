/* SPDX-License-Identifier: Apache-2.0 */
/* The objects of <gpupool/channel.hpp>. */
#include <gpupool/channel.hpp>
#include <gpupool/names.hpp>

#include <cstdio>
#include <cstring>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

using gpupool::consumer;
using gpupool::frame;
using gpupool::producer;

template <typename T> constexpr bool is_owner() {
    return std::is_nothrow_default_constructible_v<T> && std::is_nothrow_move_constructible_v<T> &&
           std::is_nothrow_move_assignable_v<T> && std::is_nothrow_destructible_v<T> &&
           !std::is_copy_constructible_v<T> && !std::is_copy_assignable_v<T>;
}
static_assert(is_owner<producer>() && is_owner<consumer>() && is_owner<frame>());

static void check(bool holds, const char *what) {
    if (!holds)
        throw std::runtime_error(std::string(what) +
                                 " does not hold; the last error is: " + gpupool_error_text());
}
#define CHECK(condition) check(static_cast<bool>(condition), #condition)

static gpupool::channel_options options_of(std::uint32_t slots) {
    gpupool::channel_options options;
    options.slot_bytes = 4096;
    options.slots = slots;
    options.metadata_bytes = 16;
    return options;
}

/* A client that sends, and one that receives, as two processes have them. */
struct two_clients {
    gpupool::client sender = gpupool::client::open(), receiver = gpupool::client::open();
};

static void a_frame_goes_back_by_itself() {
    two_clients clients;
    gpupool::make_channel(clients.sender, "own", clients.sender.host_pool(), options_of(2));
    producer from = producer::join(clients.sender, "own");
    consumer to = consumer::join(clients.receiver, "own");
    CHECK(from && to && from.look().places[1].state == GPUPOOL_CHANNEL_TAKEN && to.look().place == 1);
    for (int number = 1; number <= 10; number++) { /* of two slots, so that none may be lost */
        { frame unsent = from.loan(gpupool::now); }
        frame loaned = from.loan(gpupool::now);
        CHECK(loaned && loaned.size() >= 4096);
        std::memset(loaned.data(), number, 4096);
        loaned.send(100, "image " + std::to_string(number));
        CHECK(!loaned && loaned.data() == nullptr && loaned.size() == 0);
        frame received = to.receive(gpupool::now);
        CHECK(received && received.size() == 100 && received.metadata() == "image " + std::to_string(number));
        CHECK(received.sequence() == static_cast<std::uint64_t>(number) && received.missed() == 0 &&
              !received.is_again());
        CHECK(received.as<char>()[99] == number);
        frame moved = std::move(received);
        CHECK(!received && moved);
    }
    CHECK(from.try_loan(gpupool::now) &&
          to.try_receive(gpupool::now).error().number() == GPUPOOL_E_TIMED_OUT);
    frame first = from.loan(), second = from.loan();
    CHECK(from.try_loan(gpupool::now).error().number() == GPUPOOL_E_EXHAUSTED);
    first.release();
    CHECK(!first && from.try_loan(gpupool::now));
    second = from.loan(gpupool::now); /* the slot before is returned */
    CHECK(second && from.try_loan(gpupool::now));
    CHECK(!first.try_send(1) && !first.try_release() &&
          second.try_send(5000).error().number() == GPUPOOL_E_INVALID && second);
}

static void a_loop_ends_when_the_producer_has_left() {
    two_clients clients;
    gpupool::make_channel(clients.sender, "loop", clients.sender.host_pool(), options_of(2));
    consumer to = consumer::join(clients.receiver, "loop");
    std::thread thread([&clients] {
        producer from = producer::join(clients.sender, "loop");
        for (int number = 0; number < 100; number++) {
            frame loaned = from.loan();
            *loaned.as<int>() = number;
            loaned.send(sizeof number);
        }
    });
    int count = 0;
    frame kept;
    for (frame &received : to) {
        CHECK(*received.as<int>() == count++);
        if (count == 100)
            kept = std::move(received);
    }
    thread.join();
    CHECK(count == 100 && kept && *kept.as<int>() == 99);
    CHECK(to.begin() == to.end() && to.try_receive().error().number() == GPUPOOL_E_ENDED);
    to.leave();
    CHECK(!to && !kept && !kept.try_release()); /* the place has released it */
}

static void a_descriptor_tells_of_a_frame() {
    two_clients clients;
    gpupool::make_channel(clients.sender, "watched", clients.sender.host_pool(), options_of(2));
    producer from = producer::join(clients.sender, "watched");
    consumer to = consumer::join(clients.receiver, "watched");
    pollfd watched = {to.fd(), POLLIN, 0};
    CHECK(poll(&watched, 1, 0) == 1); /* no call has had nothing yet */
    CHECK(!to.try_receive(gpupool::now));
    CHECK(poll(&watched, 1, 0) == 0);
    from.loan().send(1);
    CHECK(poll(&watched, 1, 10000) == 1 && to.receive(gpupool::now));
}

static void device_frames_go_in_the_order_of_streams() {
    two_clients clients;
    gpupool::stream writes = gpupool::stream::create(clients.sender),
                    reads = gpupool::stream::create(clients.receiver);
    gpupool::make_channel(clients.sender, "device", clients.sender.device_pool(0), options_of(2));
    producer from = producer::join(clients.sender, "device", writes);
    consumer to = consumer::join(clients.receiver, "device", reads, 1, gpupool::now);
    gpupool::buffer host = clients.receiver.host_pool().acquire(4096, reads);
    for (int number = 1; number <= 5; number++) {
        frame loaned = from.loan();
        writes.set(loaned.data(), number, 4096);
        loaned.send(4096);
        frame received = to.receive();
        reads.copy(host.data(), received.data(), received.size());
        received.release();
        reads.synchronize();
        CHECK(host.as<char>()[4095] == number);
    }
    to.leave();
    from.leave();
}

static void objects_may_outlive_their_clients_and_places() {
    frame early, late;
    consumer to;
    producer from;
    {
        two_clients clients;
        gpupool::make_channel(clients.sender, "short", clients.sender.host_pool(), options_of(4));
        from = producer::join(clients.sender, "short");
        to = consumer::join(clients.receiver, "short");
        from.loan().send(1);
        from.loan().send(1);
        early = to.receive(gpupool::now);
        late = from.loan();
        from = producer(); /* leaves */
        CHECK(!from && !late);
    }
    CHECK(to && to.try_receive(gpupool::now).error().number() == GPUPOOL_E_INVALID);
    CHECK(!early.try_release());
    to.leave();
    CHECK(!early && !to);
}

static void failures_are_told() {
    gpupool::client client = gpupool::client::open();
    gpupool::channel_options options; /* of 0 bytes */
    CHECK(gpupool::try_make_channel(client, "bad", client.host_pool(), options).error().number() ==
          GPUPOOL_E_INVALID);
    CHECK(consumer::try_join(client, "none", gpupool::no_stream, 1, gpupool::now).error().number() ==
          GPUPOOL_E_NO_NAME);
    CHECK(!producer().try_loan() && !consumer().try_receive() && !consumer().try_look() &&
          !producer().try_fd());
    int number = 0;
    try {
        producer::join(client, "none", gpupool::no_stream, gpupool::now);
    } catch (const gpupool::error &error) {
        number = error.number();
    }
    CHECK(number == GPUPOOL_E_NO_NAME);
    options = options_of(2);
    options.policy = GPUPOOL_CHANNEL_FAIL;
    options.consumers = 3;
    options.flags = GPUPOOL_CHANNEL_KEEP;
    gpupool::make_channel(client, "kept", client.host_pool(), options);
    producer from = producer::join(client, "kept");
    gpupool_channel_info info = from.look();
    CHECK(info.options.policy == GPUPOOL_CHANNEL_FAIL && info.options.consumers == 3 &&
          info.options.metadata_bytes == 16);
    from.loan().send(1);
    from.loan().send(1);
    CHECK(from.try_loan(gpupool::forever).error().number() == GPUPOOL_E_EXHAUSTED);
    gpupool::unpublish(client, "kept");
}

int main() {
    try {
        a_frame_goes_back_by_itself();
        a_loop_ends_when_the_producer_has_left();
        a_descriptor_tells_of_a_frame();
        device_frames_go_in_the_order_of_streams();
        objects_may_outlive_their_clients_and_places();
        failures_are_told();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    std::printf("channels in C++\n");
    return 0;
}
