/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_CHANNEL_HPP
#define GPUPOOL_CHANNEL_HPP
/**
 * Channels in C++ (<gpupool/channel.h>): frames from one process to others.
 *
 *     gpupool::channel_options options;
 *     options.slot_bytes = 1 << 20;
 *     gpupool::make_channel(client, "images", client.host_pool(), options);
 *     auto producer = gpupool::producer::join(client, "images");
 *     gpupool::frame frame = producer.loan();
 *     write_to(frame.data());
 *     frame.send(frame.size());
 *
 *     auto consumer = gpupool::consumer::join(client, "images");   // in another process
 *     for (gpupool::frame &frame : consumer)                       // ends when the producer has left
 *         read_from(frame.data());
 *
 * A frame goes back by itself: one that was received is released, and one that was loaned and not sent is returned. A
 * place is left by itself. Frames that outlive the object of their place are empty then.
 *
 * A function try_… returns a result (<gpupool/result.hpp>); the one without try_ throws.
 */
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

#include <gpupool/channel.h>
#include <gpupool/gpupool.hpp>

namespace gpupool {

/** The capacities of a channel, as struct gpupool_channel_options has them. */
struct channel_options {
    std::uint64_t slot_bytes = 0; /**< of the largest frame */
    std::uint32_t slots = 8;
    std::uint32_t consumers = 1;
    std::uint32_t metadata_bytes = 0; /**< that go with a frame, at most */
    gpupool_channel_policy policy = GPUPOOL_CHANNEL_WAIT;
    std::uint32_t flags = 0; /**< GPUPOOL_CHANNEL_KEEP */
};

/** gpupool_channel_make(): the slots are memory of the pool. */
inline result<void> try_make_channel(const client &client, const char *name, const pool &pool,
                                     const channel_options &options) {
    gpupool_channel_options raw = GPUPOOL_CHANNEL_OPTIONS_INIT;

    raw.pool = pool.id();
    raw.policy = options.policy;
    raw.slot_bytes = options.slot_bytes;
    raw.slots = options.slots;
    raw.consumers = options.consumers;
    raw.metadata_bytes = options.metadata_bytes;
    raw.flags = options.flags;
    return detail::result_of(gpupool_channel_make(client.get(), name, &raw));
}

namespace detail {
/* The place of a process, which its object and the frames share. channel: nullptr: it was left. */
struct membership {
    gpupool_channel *channel = nullptr;
    bool is_producer = false;
};
} /* namespace detail */

/** A slot that was loaned, or a frame that was received. */
class frame {
  public:
    frame() noexcept : frame_() {}
    frame(frame &&other) noexcept
        : place_(std::move(other.place_)), frame_(std::exchange(other.frame_, gpupool_frame())),
          stream_(other.stream_) {}
    frame &operator=(frame &&other) noexcept {
        if (this != &other) {
            drop();
            place_ = std::move(other.place_);
            frame_ = std::exchange(other.frame_, gpupool_frame());
            stream_ = other.stream_;
        }
        return *this;
    }
    ~frame() { drop(); }

    /** Whether it has a slot: not sent, not given back, of a place that was not left. */
    explicit operator bool() const noexcept { return channel() != nullptr; }
    /** One that was received is not written. */
    void *data() const noexcept { return frame_.data; }
    template <typename T> T *as() const noexcept { return static_cast<T *>(frame_.data); }
    /** In bytes: of a slot that was loaned its capacity. */
    std::uint64_t size() const noexcept { return frame_.size_bytes; }
    /** Of a frame that was received; it lives as long as the frame. */
    std::string_view metadata() const noexcept {
        return {static_cast<const char *>(frame_.metadata), static_cast<std::size_t>(frame_.metadata_bytes)};
    }
    /** Of a frame that was received: 1, 2, … */
    std::uint64_t sequence() const noexcept { return frame_.sequence; }
    /** Frames that were dropped before it. */
    std::uint64_t missed() const noexcept { return frame_.missed; }
    /** A process before had received it, and died before it released it. */
    bool is_again() const noexcept { return frame_.is_again != 0; }
    const gpupool_frame &get() const noexcept { return frame_; }

    /** The stream that the frame is sent or given back on. */
    stream_ref used_on() const noexcept { return stream_; }
    void use_on(stream_ref stream) noexcept { stream_ = stream; }

    /** gpupool_channel_send(). After a failure the slot is loaned still. metadata: bytes, borrowed for the call. */
    result<void> try_send(std::uint64_t size_bytes, std::string_view metadata = {}) {
        int r = gpupool_channel_send(channel(), &frame_, size_bytes, metadata.data(), metadata.size(),
                                     stream_.get());
        return ended(r);
    }
    /** gpupool_channel_release() of a frame that was received, gpupool_channel_return() of a slot that was loaned. After
     * a failure it is as it was. */
    result<void> try_release() { return ended(give_back()); }

#if defined(__cpp_exceptions)
    void send(std::uint64_t size_bytes, std::string_view metadata = {}) {
        try_send(size_bytes, metadata).value();
    }
    void release() {
        try_release().value();
    }
#endif

  private:
    friend class producer;
    friend class consumer;
    frame(const std::shared_ptr<detail::membership> &place, stream_ref stream) noexcept
        : place_(place), frame_(), stream_(stream) {}

    gpupool_channel *channel() const noexcept {
        return place_ != nullptr ? place_->channel : nullptr;
    }
    int give_back() noexcept {
        return place_ != nullptr && place_->is_producer
                   ? gpupool_channel_return(channel(), &frame_, stream_.get())
                   : gpupool_channel_release(channel(), &frame_, stream_.get());
    }
    result<void> ended(int r) {
        if (r == 0) {
            place_ = nullptr;
            frame_ = gpupool_frame();
        }
        return detail::result_of(r);
    }
    void drop() noexcept {
        if (channel() != nullptr)
            static_cast<void>(give_back());
        place_ = nullptr;
        frame_ = gpupool_frame();
    }

    std::shared_ptr<detail::membership> place_;
    gpupool_frame frame_;
    stream_ref stream_ = no_stream;
};

namespace detail {
/* The common part of a producer and a consumer. */
class place_in_channel {
  public:
    place_in_channel() noexcept = default;
    place_in_channel(place_in_channel &&) noexcept = default;
    place_in_channel &operator=(place_in_channel &&other) noexcept {
        if (this != &other) {
            drop();
            place_ = std::move(other.place_);
            stream_ = other.stream_;
        }
        return *this;
    }
    ~place_in_channel() { drop(); }

    explicit operator bool() const noexcept { return get() != nullptr; }
    gpupool_channel *get() const noexcept { return place_ != nullptr ? place_->channel : nullptr; }

    /** The stream that frames are loaned or received on. */
    stream_ref used_on() const noexcept { return stream_; }
    void use_on(stream_ref stream) noexcept { stream_ = stream; }

    /** gpupool_channel_look() */
    result<gpupool_channel_info> try_look() const {
        gpupool_channel_info info;
        int r = gpupool_channel_look(get(), &info);
        return r < 0 ? result<gpupool_channel_info>(failure(r)) : result<gpupool_channel_info>(info);
    }
    /** gpupool_channel_fd(): the channel's. */
    result<int> try_fd() const {
        int r = gpupool_channel_fd(get());
        return r < 0 ? result<int>(failure(r)) : result<int>(r);
    }
    /** gpupool_channel_leave(). Frames of the place are empty then. After a failure the place is not left. */
    result<void> try_leave() {
        int r = gpupool_channel_leave(get());
        if (r == 0)
            forget();
        return detail::result_of(r);
    }

#if defined(__cpp_exceptions)
    gpupool_channel_info look() const {
        return try_look().value();
    }
    int fd() const {
        return try_fd().value();
    }
    void leave() {
        try_leave().value();
    }
#endif

  protected:
    int take_place(const client &client, const char *name, std::uint32_t place, stream_ref stream,
                   std::chrono::nanoseconds timeout) {
        place_ = std::make_shared<membership>();
        place_->is_producer = place == GPUPOOL_CHANNEL_PRODUCER;
        stream_ = stream;
        return gpupool_channel_join(client.get(), name, place, nanoseconds_of(timeout), &place_->channel);
    }

    std::shared_ptr<membership> place_;
    stream_ref stream_ = no_stream;

  private:
    void forget() noexcept {
        if (place_ != nullptr)
            place_->channel = nullptr;
        place_ = nullptr;
    }
    void drop() noexcept {
        static_cast<void>(gpupool_channel_leave(get()));
        forget();
    }
};
} /* namespace detail */

/** The place of a channel's producer. */
class producer : public detail::place_in_channel {
  public:
    /** gpupool_channel_join(). stream: the one that writes frames. */
    static result<producer> try_join(const client &client, const char *name, stream_ref stream = no_stream,
                                     std::chrono::nanoseconds timeout = forever) {
        producer joined;
        int r = joined.take_place(client, name, GPUPOOL_CHANNEL_PRODUCER, stream, timeout);
        return r < 0 ? result<producer>(failure(r)) : result<producer>(std::move(joined));
    }
    /** gpupool_channel_loan() */
    result<frame> try_loan(std::chrono::nanoseconds timeout = forever) {
        frame loaned(place_, stream_);
        int r = gpupool_channel_loan(get(), stream_.get(), detail::nanoseconds_of(timeout), &loaned.frame_);
        if (r == 0)
            return result<frame>(std::move(loaned));
        failure reason(r);
        loaned.place_ = nullptr;
        return result<frame>(std::move(reason));
    }

#if defined(__cpp_exceptions)
    static producer join(const client &client, const char *name, stream_ref stream = no_stream,
                         std::chrono::nanoseconds timeout = forever) {
        return try_join(client, name, stream, timeout).value();
    }
    frame loan(std::chrono::nanoseconds timeout = forever) {
        return try_loan(timeout).value();
    }
#endif
};

/** The place of a consumer. */
class consumer : public detail::place_in_channel {
  public:
    /** gpupool_channel_join(). stream: the one that reads frames. */
    static result<consumer> try_join(const client &client, const char *name, stream_ref stream = no_stream,
                                     std::uint32_t place = GPUPOOL_CHANNEL_ANY_CONSUMER,
                                     std::chrono::nanoseconds timeout = forever) {
        consumer joined;
        int r = joined.take_place(client, name, place, stream, timeout);
        return r < 0 ? result<consumer>(failure(r)) : result<consumer>(std::move(joined));
    }
    /** gpupool_channel_receive() */
    result<frame> try_receive(std::chrono::nanoseconds timeout = forever) {
        frame received(place_, stream_);
        int r =
            gpupool_channel_receive(get(), stream_.get(), detail::nanoseconds_of(timeout), &received.frame_);
        if (r == 0)
            return result<frame>(std::move(received));
        failure reason(r);
        received.place_ = nullptr;
        return result<frame>(std::move(reason));
    }

#if defined(__cpp_exceptions)
    static consumer join(const client &client, const char *name, stream_ref stream = no_stream,
                         std::uint32_t place = GPUPOOL_CHANNEL_ANY_CONSUMER,
                         std::chrono::nanoseconds timeout = forever) {
        return try_join(client, name, stream, place, timeout).value();
    }
    frame receive(std::chrono::nanoseconds timeout = forever) {
        return try_receive(timeout).value();
    }

    /** Receives one frame after the other, and ends when the producer has left. The frame is released before the next
     * one is received, unless the loop moved it away. Other failures than ENDED are thrown. */
    class iterator {
      public:
        using iterator_category = std::input_iterator_tag;
        using value_type = frame;
        using difference_type = std::ptrdiff_t;
        using pointer = frame *;
        using reference = frame &;

        iterator() noexcept = default;
        explicit iterator(consumer &from) : from_(&from) { advance(); }
        frame &operator*() noexcept { return frame_; }
        frame *operator->() noexcept { return &frame_; }
        iterator &operator++() {
            advance();
            return *this;
        }
        friend bool operator==(const iterator &a, const iterator &b) noexcept { return a.from_ == b.from_; }
        friend bool operator!=(const iterator &a, const iterator &b) noexcept { return a.from_ != b.from_; }

      private:
        void advance() {
            frame_ = frame();
            result<frame> next = from_->try_receive();
            if (next)
                frame_ = std::move(*next);
            else if (next.error().number() == GPUPOOL_E_ENDED)
                from_ = nullptr;
            else
                next.value();
        }

        consumer *from_ = nullptr; /* nullptr: the end */
        frame frame_;
    };
    iterator begin() {
        return iterator(*this);
    }
    iterator end() noexcept {
        return iterator();
    }
#endif
};

#if defined(__cpp_exceptions)
inline void make_channel(const client &client, const char *name, const pool &pool,
                         const channel_options &options) {
    try_make_channel(client, name, pool, options).value();
}
#endif

} /* namespace gpupool */
#endif
