/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_CLIENT_NAME_HPP
#define GPUPOOL_CLIENT_NAME_HPP
/**
 * A part of <gpupool/gpupool.hpp>, not for programs: how its objects name their client, and find out that it
 * has closed.
 *
 * A reference count would do that as well. But each buffer would change it, and threads that acquire and
 * release beside each other would take the count's cache line from each other. A name is only read.
 */
#include <atomic>
#include <cstdint>
#include <utility>

#include <gpupool/gpupool.h>

namespace gpupool {
namespace detail {

/* The place at which an open client is found. Places are kept for later clients, and never freed: an object
 * may look at the place of a client that has closed. The generation counts the clients that the place has
 * had. */
struct place {
    std::atomic<std::uint64_t> generation{1};
    gpupool_client *client = nullptr;
    place *next = nullptr;
};

inline std::atomic<place *> idle_places{nullptr};

inline void keep_place(place *idle) noexcept {
    idle->next = idle_places.load(std::memory_order_relaxed);
    while (!idle_places.compare_exchange_weak(idle->next, idle, std::memory_order_release,
                                              std::memory_order_relaxed))
        ;
}

/* Takes the whole list, and puts back what it does not need: no other thread can have an element of it
 * meanwhile. */
inline place *find_place() {
    place *found = idle_places.exchange(nullptr, std::memory_order_acquire);
    if (found == nullptr)
        return new place;
    for (place *rest = std::exchange(found->next, nullptr); rest != nullptr;) {
        place *next = rest->next;
        keep_place(rest);
        rest = next;
    }
    return found;
}

/* Names a client. A small value. */
class client_name {
  public:
    client_name() noexcept = default;
    client_name(place *at, std::uint64_t generation) noexcept : place_(at), generation_(generation) {}

    /* nullptr: none, or one that has closed. */
    gpupool_client *get() const noexcept {
        return place_ != nullptr && place_->generation.load(std::memory_order_acquire) == generation_
                   ? place_->client
                   : nullptr;
    }
    /* From now on the name is of no client. */
    void end() noexcept {
        if (get() != nullptr) {
            place_->generation.fetch_add(1, std::memory_order_release);
            keep_place(place_);
        }
        place_ = nullptr;
    }

  private:
    place *place_ = nullptr;
    std::uint64_t generation_ = 0;
};

inline client_name name_client(place *at, gpupool_client *client) noexcept {
    at->client = client;
    return client_name(at, at->generation.load(std::memory_order_relaxed));
}

/* The places of clients that others close. Each such client has one, which it keeps: names of it are good as
 * long as the client is open, whichever object made them. */
inline std::atomic<place *> borrowed_places{nullptr};

inline client_name name_borrowed(gpupool_client *client) {
    place *first = borrowed_places.load(std::memory_order_acquire);

    for (place *at = first; at != nullptr; at = at->next)
        if (at->client == client)
            return client_name(at, at->generation.load(std::memory_order_relaxed));
    place *at = new place;
    client_name name = name_client(at, client);
    at->next = first;
    while (!borrowed_places.compare_exchange_weak(at->next, at, std::memory_order_release,
                                                  std::memory_order_relaxed))
        ;
    return name;
}

} /* namespace detail */
} /* namespace gpupool */
#endif
