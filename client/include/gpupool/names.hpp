/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_NAMES_HPP
#define GPUPOOL_NAMES_HPP
/**
 * Names in C++ (<gpupool/names.h>): buffers that other processes find by a text.
 *
 *     gpupool::publish(client, "weights/llama", {&weights}, stream, GPUPOOL_NAME_KEEP);
 *
 *     gpupool::opened_name name = gpupool::opened_name::open(client, "weights/llama", stream);
 *     use(name[0].data);
 *
 * A function try_… returns a result (<gpupool/result.hpp>); the one without try_ throws.
 */
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <gpupool/gpupool.hpp>
#include <gpupool/names.h>

namespace gpupool {

/** gpupool_publish(): returns the generation. directory: bytes, borrowed for the call. */
inline result<std::uint64_t> try_publish(const client &client, const char *name,
                                         std::initializer_list<const buffer *> buffers, stream_ref stream,
                                         std::uint32_t flags = 0, std::string_view directory = {}) {
    gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
    gpupool_buffer raw[GPUPOOL_NAME_BUFFERS_MAX + 1] = {}; /* the call refuses one too many */
    std::uint64_t generation = 0;
    std::size_t count = 0;

    publication.flags = flags;
    publication.directory = directory.data();
    publication.directory_bytes = directory.size();
    for (const buffer *one : buffers)
        if (count <= GPUPOOL_NAME_BUFFERS_MAX)
            raw[count++] = one->get();
    int r = gpupool_publish(client.get(), name, raw, count, stream.get(), &publication, &generation);
    return r < 0 ? result<std::uint64_t>(failure(r)) : result<std::uint64_t>(generation);
}

/** gpupool_unpublish() */
inline result<void> try_unpublish(const client &client, const char *name, std::uint64_t generation = 0) {
    return detail::result_of(gpupool_unpublish(client.get(), name, generation));
}

/** gpupool_abandon_name() */
inline result<void> try_abandon_name(const client &client, const char *name) {
    return detail::result_of(gpupool_abandon_name(client.get(), name));
}

/** gpupool_watch_name(): returns the present generation, 0 where there is none any more. */
inline result<std::uint64_t> try_watch_name(const client &client, const char *name, std::uint64_t generation,
                                            std::chrono::nanoseconds timeout = forever) {
    std::uint64_t present = 0;
    int r = gpupool_watch_name(client.get(), name, generation, detail::nanoseconds_of(timeout), &present);
    return r < 0 ? result<std::uint64_t>(failure(r)) : result<std::uint64_t>(present);
}

/**
 * A name that was opened. It remembers the stream that it was opened for, and its destructor releases its
 * buffers behind that stream; a program whose last work is on another one calls close(stream). Empty: it was
 * closed or moved from, or this process is to build the name.
 */
class opened_name {
  public:
    opened_name() noexcept = default;
    opened_name(opened_name &&other) noexcept
        : client_(std::exchange(other.client_, {})), name_(std::exchange(other.name_, nullptr)),
          stream_(other.stream_) {}
    opened_name &operator=(opened_name &&other) noexcept {
        if (this != &other) {
            drop();
            client_ = std::exchange(other.client_, {});
            name_ = std::exchange(other.name_, nullptr);
            stream_ = other.stream_;
        }
        return *this;
    }
    ~opened_name() { drop(); }

    /** gpupool_open_name() */
    static result<opened_name> try_open(const client &client, const char *name, stream_ref stream,
                                        std::chrono::nanoseconds timeout = now, std::uint64_t generation = 0,
                                        std::uint32_t flags = 0) {
        opened_name opened(client, stream);
        int r = gpupool_open_name(client.get(), name, generation, flags, stream.get(),
                                  detail::nanoseconds_of(timeout), &opened.name_);
        return r < 0 ? result<opened_name>(failure(r)) : result<opened_name>(std::move(opened));
    }
    /** gpupool_open_or_build(): empty where this process is to build. */
    static result<opened_name> try_open_or_build(const client &client, const char *name, stream_ref stream,
                                                 std::chrono::nanoseconds timeout = forever,
                                                 std::uint32_t flags = 0) {
        opened_name opened(client, stream);
        int builds = 0;
        int r = gpupool_open_or_build(client.get(), name, flags, stream.get(), detail::nanoseconds_of(timeout),
                                      &opened.name_, &builds);
        return r < 0 ? result<opened_name>(failure(r)) : result<opened_name>(std::move(opened));
    }

    explicit operator bool() const noexcept { return name_ != nullptr; }
    /** How many buffers; 0: empty. */
    std::size_t size() const noexcept {
        std::size_t count = 0;
        if (name_ != nullptr)
            static_cast<void>(gpupool_name_buffers(name_, &count));
        return count;
    }
    const gpupool_buffer *begin() const noexcept {
        return name_ != nullptr ? gpupool_name_buffers(name_, nullptr) : nullptr;
    }
    const gpupool_buffer *end() const noexcept { return begin() + size(); }
    /** The index is below size(). */
    const gpupool_buffer &operator[](std::size_t index) const noexcept { return begin()[index]; }
    /** It lives with the name. */
    std::string_view directory() const noexcept {
        std::size_t bytes = 0;
        const void *memory = name_ != nullptr ? gpupool_name_directory(name_, &bytes) : nullptr;
        return {static_cast<const char *>(memory), bytes};
    }
    std::uint64_t generation() const noexcept { return name_ != nullptr ? gpupool_name_generation(name_) : 0; }
    std::uint64_t layout() const noexcept { return name_ != nullptr ? gpupool_name_layout(name_) : 0; }
    std::uint32_t flags() const noexcept { return name_ != nullptr ? gpupool_name_flags(name_) : 0; }

    /** gpupool_sleep_name(), of a name that was opened with GPUPOOL_NAME_CAN_SLEEP. The pointers stay, and are not to be
     * used. */
    result<void> try_sleep(stream_ref stream) {
        return detail::result_of(gpupool_sleep_name(client_.get(), name_, stream.get()));
    }
    result<void> try_sleep() { return try_sleep(stream_); }
    /** gpupool_wake_name(): a generation that is new enough, at the same addresses. The name remembers the stream. */
    result<void> try_wake(std::uint64_t generation, stream_ref stream,
                          std::chrono::nanoseconds timeout = forever) {
        int r = gpupool_wake_name(client_.get(), name_, generation, stream.get(),
                                  detail::nanoseconds_of(timeout));
        if (r == 0)
            stream_ = stream;
        return detail::result_of(r);
    }

    /** gpupool_close_name(). After a failure the name is open, in part or whole. */
    result<void> try_close(stream_ref stream) {
        int r = gpupool_close_name(client_.get(), name_, stream.get());
        if (r == 0)
            name_ = nullptr;
        return detail::result_of(r);
    }
    result<void> try_close() { return try_close(stream_); }

#if defined(__cpp_exceptions)
    static opened_name open(const client &client, const char *name, stream_ref stream,
                            std::chrono::nanoseconds timeout = now, std::uint64_t generation = 0,
                            std::uint32_t flags = 0) {
        return try_open(client, name, stream, timeout, generation, flags).value();
    }
    static opened_name open_or_build(const client &client, const char *name, stream_ref stream,
                                     std::chrono::nanoseconds timeout = forever, std::uint32_t flags = 0) {
        return try_open_or_build(client, name, stream, timeout, flags).value();
    }
    void sleep(stream_ref stream) {
        try_sleep(stream).value();
    }
    void sleep() {
        sleep(stream_);
    }
    void wake(std::uint64_t generation, stream_ref stream, std::chrono::nanoseconds timeout = forever) {
        try_wake(generation, stream, timeout).value();
    }
    void close(stream_ref stream) {
        try_close(stream).value();
    }
    void close() {
        close(stream_);
    }
#endif

  private:
    opened_name(const client &client, stream_ref stream) noexcept : client_(client.name_), stream_(stream) {}
    void drop() noexcept {
        static_cast<void>(gpupool_close_name(client_.get(), name_, stream_.get()));
        name_ = nullptr;
    }

    detail::client_name client_;
    gpupool_name *name_ = nullptr;
    stream_ref stream_ = no_stream;
};

#if defined(__cpp_exceptions)
inline std::uint64_t publish(const client &client, const char *name, std::initializer_list<const buffer *> buffers,
                             stream_ref stream, std::uint32_t flags = 0, std::string_view directory = {}) {
    return try_publish(client, name, buffers, stream, flags, directory).value();
}
inline void unpublish(const client &client, const char *name, std::uint64_t generation = 0) {
    try_unpublish(client, name, generation).value();
}
inline void abandon_name(const client &client, const char *name) {
    try_abandon_name(client, name).value();
}
inline std::uint64_t watch_name(const client &client, const char *name, std::uint64_t generation,
                                std::chrono::nanoseconds timeout = forever) {
    return try_watch_name(client, name, generation, timeout).value();
}
#endif

} /* namespace gpupool */
#endif
