/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_GPUPOOL_HPP
#define GPUPOOL_GPUPOOL_HPP
/**
 * The interface in C++17: clients, pools, buffers, streams, tokens and parcels as objects that give back by
 * themselves. docs/cpp.md has a program. The header needs the client library and nothing else of the project.
 *
 * - Each call exists twice. try_acquire() returns a gpupool::result<buffer>; acquire() returns the buffer, or
 *   throws gpupool::error. A program that is compiled with -fno-exceptions has the calls that begin with try_.
 *   Arguments, units and errors are those of the call of the C interface that a comment names, which
 *   <gpupool/gpupool.h> documents.
 * - Objects are moved, not copied. An object that was moved from, or whose memory went back, is empty. It
 *   gives nothing back a second time. Giving back an empty object is no failure.
 * - Destructors do not throw. Memory that a destructor cannot give back returns when the client closes. A
 *   program that needs the error calls release(), destroy() or revoke() before.
 * - get() lends the object of the C interface. take() hands it to the caller, and the object is empty.
 *   adopt() makes an object of one.
 *
 * Lifetimes. A client closes with its object: then all of its memory goes back, and pointers into it are not
 * to be used any more. Buffers, streams, parcels and pools that outlive their client are safe to use and to
 * destroy: their calls fail with GPUPOOL_E_INVALID, and their destructors do nothing. They find that out
 * without counting references, so a warm acquire costs what it costs in C. A client closes while no other
 * thread is in a call, as gpupool_close() asks.
 *
 * Threads. Calls of a client and of its pools are thread-safe. Each other object is used by one thread at a
 * time. In a forked child the calls of the parent's objects fail with GPUPOOL_E_FORKED.
 */
#include <cassert>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include <gpupool/client_name.hpp>
#include <gpupool/fence.h>
#include <gpupool/gpupool.h>
#include <gpupool/result.hpp>

struct CUstream_st; /* a cudaStream_t and a CUstream point to one */

namespace gpupool {

class client;
class opened_name; /* <gpupool/names.hpp> */
class stream;

/* --- times and streams as arguments --- */

/** GPUPOOL_NOW and GPUPOOL_FOREVER */
inline constexpr std::chrono::nanoseconds now = std::chrono::nanoseconds::zero();
inline constexpr std::chrono::nanoseconds forever = std::chrono::nanoseconds::max();
/** How long an acquire waits for room unless told otherwise, as gpupool_alloc() does. */
inline constexpr std::chrono::nanoseconds default_wait = std::chrono::seconds(10);

/** A stream as an argument: a gpupool::stream that is not empty, a cudaStream_t, nullptr (the legacy default
 * stream) or one of the names below. */
class stream_ref {
  public:
    stream_ref(void *handle) noexcept : number_(reinterpret_cast<std::intptr_t>(handle)) {}
    stream_ref(CUstream_st *handle) noexcept : stream_ref(static_cast<void *>(handle)) {}
    stream_ref(std::nullptr_t) noexcept : number_(0) {}
    template <typename T> stream_ref(T *) = delete; /* no stream: the address of something else */
    stream_ref(const stream &stream) noexcept;
    stream_ref(const stream &&) = delete; /* a buffer would keep the name of a stream that has ended */
    void *get() const noexcept { return reinterpret_cast<void *>(number_); }

    static constexpr stream_ref of_number(std::intptr_t number) noexcept { return stream_ref(number, 0); }

  private:
    constexpr stream_ref(std::intptr_t number, int) noexcept : number_(number) {}
    std::intptr_t number_;
};

/** GPUPOOL_NO_STREAM and GPUPOOL_PER_THREAD */
inline constexpr stream_ref no_stream = stream_ref::of_number(-1);
inline constexpr stream_ref per_thread = stream_ref::of_number(2);

namespace detail {

inline std::uint64_t nanoseconds_of(std::chrono::nanoseconds time) noexcept {
    if (time == forever)
        return GPUPOOL_FOREVER;
    return time.count() > 0 ? static_cast<std::uint64_t>(time.count()) : GPUPOOL_NOW;
}

} /* namespace detail */

/* --- tokens and parcels --- */

/** Names a shared buffer to other processes of the same user: 64 plain bytes, to be sent by any means. A
 * secret: any process of the user that knows it may attach. A value, which owns nothing. */
class token {
  public:
    static constexpr std::size_t size_bytes = sizeof(gpupool_token);

    token() noexcept : token_() {}
    token(const gpupool_token &raw) noexcept : token_(raw) {}
    /** Its size_bytes bytes, to be sent, or to be received into. */
    const void *data() const noexcept { return token_.bytes; }
    void *data() noexcept { return token_.bytes; }
    static constexpr std::size_t size() noexcept { return size_bytes; }
    const gpupool_token &get() const noexcept { return token_; }

    friend bool operator==(const token &a, const token &b) noexcept {
        return std::memcmp(a.data(), b.data(), size_bytes) == 0;
    }
    friend bool operator!=(const token &a, const token &b) noexcept { return !(a == b); }

  private:
    gpupool_token token_;
};

/**
 * A token of buffer::send(), which holds the buffer by itself until it is taken. A parcel that goes before it
 * was handed on is revoked, for no process knows its token:
 *
 *     gpupool::parcel parcel = buffer.send(stream);
 *     queue.push(parcel.get());  // may throw: the parcel is revoked then
 *     parcel.hand_on();
 */
class parcel {
  public:
    parcel() noexcept = default;
    parcel(parcel &&other) noexcept : client_(std::exchange(other.client_, {})), token_(other.token_) {}
    parcel &operator=(parcel &&other) noexcept {
        if (this != &other) {
            drop();
            client_ = std::exchange(other.client_, {});
            token_ = other.token_;
        }
        return *this;
    }
    ~parcel() { drop(); }

    /** Whether the parcel would be revoked. */
    explicit operator bool() const noexcept { return client_.get() != nullptr; }
    const token &get() const noexcept { return token_; }
    /** Its token, which is on its way to the taker now: nothing is revoked any more. */
    token hand_on() noexcept {
        client_ = {};
        return token_;
    }
    /** gpupool_revoke(). Afterwards the parcel is empty, unless the call failed for another reason than
     * NO_TOKEN. */
    result<void> try_revoke() {
        gpupool_client *client = client_.get();
        int r = client != nullptr ? gpupool_revoke(client, &token_.get()) : 0;
        if (r == 0 || r == GPUPOOL_E_NO_TOKEN)
            client_ = {};
        return detail::result_of(r);
    }
#if defined(__cpp_exceptions)
    void revoke() {
        try_revoke().value();
    }
#endif

  private:
    friend class buffer;
    parcel(detail::client_name client, const gpupool_token &raw) noexcept : client_(client), token_(raw) {}
    void drop() noexcept {
        if (gpupool_client *client = client_.get())
            static_cast<void>(gpupool_revoke(client, &token_.get()));
        client_ = {};
    }

    detail::client_name client_;
    token token_;
};

/* --- buffers --- */

/**
 * A buffer. It remembers the stream that it was acquired or attached for, and its destructor gives it back on
 * that stream: others use the memory when the work that was enqueued there until then is done. A program
 * whose last work is on another stream calls use_on() or release(stream), and record_stream() for further
 * ones. With per_thread the destructor means the stream of the thread that it runs in. With no_stream the GPU
 * has to be done with the buffer. The stream has to exist until then: declare a stream before its buffers.
 */
class buffer {
  public:
    buffer() noexcept : buffer_() {}
    buffer(buffer &&other) noexcept
        : client_(std::exchange(other.client_, {})), buffer_(std::exchange(other.buffer_, gpupool_buffer())),
          stream_(other.stream_) {}
    buffer &operator=(buffer &&other) noexcept {
        if (this != &other) {
            drop();
            client_ = std::exchange(other.client_, {});
            buffer_ = std::exchange(other.buffer_, gpupool_buffer());
            stream_ = other.stream_;
        }
        return *this;
    }
    ~buffer() { drop(); }

    /** Takes a buffer of the C interface. */
    static buffer adopt(const client &owner, const gpupool_buffer &raw, stream_ref stream) noexcept;
    /** Hands the buffer to the caller, who releases it by gpupool_release(). All zero: the buffer was empty.
     */
    gpupool_buffer take() noexcept {
        client_ = {};
        return std::exchange(buffer_, gpupool_buffer());
    }
    const gpupool_buffer &get() const noexcept { return buffer_; }

    /** Whether there is memory: acquired, not given back, of a client that is open. */
    explicit operator bool() const noexcept { return client_.get() != nullptr; }
    /** Device pointer or host pointer, aligned to 512 bytes; nullptr: empty. */
    void *data() const noexcept { return buffer_.data; }
    template <typename T> T *as() const noexcept { return static_cast<T *>(buffer_.data); }
    /** In bytes, as asked for. */
    std::uint64_t size() const noexcept { return buffer_.size_bytes; }
    std::uint64_t capacity() const noexcept { return buffer_.capacity_bytes; }
    bool is_host() const noexcept { return buffer_.kind == GPUPOOL_POOL_HOST; }
    /** Ordinal in this process; -1: host memory. */
    int device() const noexcept { return buffer_.device; }

    /** The stream that the buffer is given back on. */
    stream_ref used_on() const noexcept { return stream_; }
    void use_on(stream_ref stream) noexcept { stream_ = stream; }

    /** gpupool_release(). After a failure the buffer is as it was. */
    result<void> try_release(stream_ref stream) { return detail::result_of(give_back(stream)); }
    result<void> try_release() { return try_release(stream_); }
    /** gpupool_record_stream() */
    result<void> try_record_stream(stream_ref stream) {
        return detail::result_of(gpupool_record_stream(client_.get(), &buffer_, stream.get()));
    }
    /** gpupool_shrink() */
    result<void> try_shrink(std::uint64_t new_size_bytes, stream_ref stream) {
        return detail::result_of(gpupool_shrink(client_.get(), &buffer_, new_size_bytes, stream.get()));
    }
    /** gpupool_share(): the token is good while a process holds the buffer. */
    result<token> try_share(stream_ref stream) const {
        gpupool_token raw;
        int r = gpupool_share(client_.get(), &buffer_, stream.get(), &raw);
        return r < 0 ? result<token>(failure(r)) : result<token>(token(raw));
    }
    /** gpupool_send(): the parcel holds the buffer by itself, so this buffer may be released at once. */
    result<parcel> try_send(stream_ref stream, std::uint32_t takers = 1,
                            std::chrono::nanoseconds lifetime = std::chrono::minutes(1)) const {
        return send_by(gpupool_send, stream, takers, lifetime);
    }
    /** gpupool_send_held() */
    result<parcel> try_send_held(stream_ref stream, std::uint32_t takers = 1,
                                 std::chrono::nanoseconds lifetime = std::chrono::minutes(1)) const {
        return send_by(gpupool_send_held, stream, takers, lifetime);
    }
    /** gpupool_reuse() */
    result<void> try_reuse(stream_ref stream) {
        return detail::result_of(gpupool_reuse(client_.get(), &buffer_, stream.get()));
    }
    /** gpupool_sleep(), of a buffer with GPUPOOL_CAN_SLEEP. The pointer stays, and is not to be used. */
    result<void> try_sleep(gpupool_keep keep, stream_ref stream) {
        return detail::result_of(gpupool_sleep(client_.get(), &buffer_, keep, stream.get()));
    }
    /** gpupool_wake(). flags: 0 or GPUPOOL_ZERO */
    result<void> try_wake(stream_ref stream, std::chrono::nanoseconds wait = default_wait,
                          std::uint32_t flags = 0) {
        return detail::result_of(
            gpupool_wake(client_.get(), &buffer_, stream.get(), detail::nanoseconds_of(wait), flags));
    }
    /** gpupool_query() */
    result<gpupool_buffer_info> try_query() const {
        gpupool_buffer_info info;
        int r = gpupool_query(client_.get(), &buffer_, &info);
        return r < 0 ? result<gpupool_buffer_info>(failure(r)) : result<gpupool_buffer_info>(info);
    }

#if defined(__cpp_exceptions)
    void release(stream_ref stream) {
        int r = give_back(stream);
        if (r < 0)
            detail::fail(failure(r));
    }
    void release() {
        release(stream_);
    }
    void record_stream(stream_ref stream) {
        try_record_stream(stream).value();
    }
    void shrink(std::uint64_t new_size_bytes, stream_ref stream) {
        try_shrink(new_size_bytes, stream).value();
    }
    token share(stream_ref stream) const {
        return try_share(stream).value();
    }
    parcel send(stream_ref stream, std::uint32_t takers = 1,
                std::chrono::nanoseconds lifetime = std::chrono::minutes(1)) const {
        return try_send(stream, takers, lifetime).value();
    }
    parcel send_held(stream_ref stream, std::uint32_t takers = 1,
                     std::chrono::nanoseconds lifetime = std::chrono::minutes(1)) const {
        return try_send_held(stream, takers, lifetime).value();
    }
    void reuse(stream_ref stream) {
        try_reuse(stream).value();
    }
    void sleep(gpupool_keep keep, stream_ref stream) {
        try_sleep(keep, stream).value();
    }
    void wake(stream_ref stream, std::chrono::nanoseconds wait = default_wait, std::uint32_t flags = 0) {
        try_wake(stream, wait, flags).value();
    }
    gpupool_buffer_info query() const {
        return try_query().value();
    }
#endif

  private:
    friend class client;
    friend class pool;
    buffer(detail::client_name client, const gpupool_buffer &raw, stream_ref stream) noexcept
        : client_(client), buffer_(raw), stream_(stream) {}
    /* For a call that fills it in: it is empty until it has a client. */
    explicit buffer(stream_ref stream) noexcept : stream_(stream) {}
    result<parcel> send_by(decltype(gpupool_send) *call, stream_ref stream, std::uint32_t takers,
                           std::chrono::nanoseconds lifetime) const {
        gpupool_token raw;
        int r = call(client_.get(), &buffer_, stream.get(), takers, detail::nanoseconds_of(lifetime), &raw);
        return r < 0 ? result<parcel>(failure(r)) : result<parcel>(parcel(client_, raw));
    }
    int give_back(stream_ref stream) noexcept {
        gpupool_client *client = client_.get();
        int r = client != nullptr ? gpupool_release(client, &buffer_, stream.get()) : 0;
        if (r == 0)
            static_cast<void>(take());
        return r;
    }
    void drop() noexcept {
        if (gpupool_client *client = client_.get())
            static_cast<void>(gpupool_release(client, &buffer_, stream_.get()));
        client_ = {};
    }

    detail::client_name client_;
    gpupool_buffer buffer_;
    stream_ref stream_ = no_stream;
};

/* --- pools --- */

/** A pool of a client. A small value, which owns nothing. */
class pool {
  public:
    /** The pool of a number, which gpupool_pool.id is. */
    pool(const client &owner, std::uint32_t id) noexcept;
    std::uint32_t id() const noexcept { return id_; }

    /** gpupool_acquire() */
    result<buffer> try_acquire(std::uint64_t size_bytes, stream_ref stream,
                               std::chrono::nanoseconds wait = default_wait, std::uint32_t flags = 0) const {
        buffer made(stream);
        int r = acquire_into(&made, size_bytes, wait, flags);
        return r < 0 ? result<buffer>(failure(r)) : result<buffer>(std::move(made));
    }
    /** gpupool_prepare() */
    result<void> try_prepare(std::uint64_t bytes) const {
        return detail::result_of(gpupool_prepare(client_.get(), id_, bytes));
    }

#if defined(__cpp_exceptions)
    buffer acquire(std::uint64_t size_bytes, stream_ref stream, std::chrono::nanoseconds wait = default_wait,
                   std::uint32_t flags = 0) const {
        buffer made(stream);
        int r = acquire_into(&made, size_bytes, wait, flags);
        if (r < 0)
            detail::fail(failure(r));
        return made;
    }
    void prepare(std::uint64_t bytes) const {
        try_prepare(bytes).value();
    }
#endif

  private:
    friend class client;
    pool(detail::client_name client, std::uint32_t id) noexcept : client_(client), id_(id) {}
    int acquire_into(buffer *made, std::uint64_t size_bytes, std::chrono::nanoseconds wait,
                     std::uint32_t flags) const noexcept {
        int r = gpupool_acquire(client_.get(), id_, size_bytes, made->stream_.get(),
                                detail::nanoseconds_of(wait), flags, &made->buffer_);
        if (r == 0)
            made->client_ = client_;
        return r;
    }

    detail::client_name client_;
    std::uint32_t id_;
};

/* --- clients --- */

/** Options that begin as GPUPOOL_OPTIONS_INIT. */
struct options : gpupool_options {
    options() noexcept : gpupool_options(GPUPOOL_OPTIONS_INIT) {}
};

/** A connection to the daemon, which closes with the object. */
class client {
  public:
    client() noexcept = default;
    client(client &&other) noexcept
        : name_(std::exchange(other.name_, {})), is_borrowed_(std::exchange(other.is_borrowed_, false)) {}
    client &operator=(client &&other) noexcept {
        if (this != &other) {
            close();
            name_ = std::exchange(other.name_, {});
            is_borrowed_ = std::exchange(other.is_borrowed_, false);
        }
        return *this;
    }
    ~client() { close(); }

    /** gpupool_open() */
    static result<client> try_open(const gpupool_options &wanted = options()) {
        gpupool_client *raw = nullptr;
        detail::place *at =
            detail::find_place(); /* before there is a client that an exception could leave open */
        int r = gpupool_open(&wanted, &raw);
        if (r == 0)
            return client(detail::name_client(at, raw), false);
        detail::keep_place(at);
        return failure(r);
    }
    /** gpupool_default(): the process's default client, borrowed: it stays open when the object goes, and
     * buffers that were acquired by it stay. */
    static result<client> try_open_default() {
        gpupool_client *raw = nullptr;
        int r = gpupool_default(&raw);
        return r < 0 ? result<client>(failure(r)) : result<client>(borrow(raw));
    }
    /** Takes a client of the C interface. */
    static client adopt(gpupool_client *raw) {
        return raw != nullptr ? client(detail::name_client(detail::find_place(), raw), false) : client();
    }
    /** For a client of the C interface that is closed elsewhere. Objects that this one makes may outlive it,
     * and go before gpupool_close(). */
    static client borrow(gpupool_client *raw) {
        return raw != nullptr ? client(detail::name_borrowed(raw), true) : client();
    }
    /** Hands the client to the caller, who closes it by gpupool_close(). Objects that this one has made give
     * nothing back any more, unless the client was borrowed. nullptr: there was none. */
    gpupool_client *take() noexcept {
        gpupool_client *raw = name_.get();
        if (std::exchange(is_borrowed_, false))
            name_ = {};
        else
            name_.end();
        return raw;
    }
    /** Lends the client; nullptr: there is none. */
    gpupool_client *get() const noexcept { return name_.get(); }
    explicit operator bool() const noexcept { return get() != nullptr; }

    /** gpupool_close(). Buffers, streams and parcels of the client are empty from then on. A borrowed client
     * stays open, and so do they. */
    void close() noexcept {
        bool is_owner = !is_borrowed_;
        gpupool_client *raw = take();
        if (raw != nullptr && is_owner)
            gpupool_close(raw);
    }

    /** gpupool_is_connected(): false for ever once the daemon has gone. Then open another client. */
    bool is_connected() const noexcept { return gpupool_is_connected(get()) != 0; }
    /** gpupool_connection_state(). LOST: also of an empty client, and in a forked child. */
    enum gpupool_connection_state connection_state() const noexcept {
        enum gpupool_connection_state state = GPUPOOL_CONNECTION_LOST;
        return gpupool_connection_state(get(), &state) == 0 ? state : GPUPOOL_CONNECTION_LOST;
    }
    const char *socket_path() const noexcept { return gpupool_socket_path(get()); }
    gpupool_gpu gpu_kind() const noexcept { return gpupool_gpu_kind(get()); }

    /** gpupool_device_synchronize() */
    result<void> try_synchronize(int device) const {
        return detail::result_of(gpupool_device_synchronize(get(), device));
    }
    /** gpupool_device_pool(); -1: of the calling thread's current device */
    result<pool> try_device_pool(int device = -1) const {
        std::uint32_t id = 0;
        int r = gpupool_device_pool(get(), device, &id);
        return r < 0 ? result<pool>(failure(r)) : result<pool>(pool(name_, id));
    }
    /** gpupool_host_pool(); -1: of the node where the calling thread runs */
    result<pool> try_host_pool(int numa_node = -1) const {
        std::uint32_t id = 0;
        int r = gpupool_host_pool(get(), numa_node, &id);
        return r < 0 ? result<pool>(failure(r)) : result<pool>(pool(name_, id));
    }
    /** gpupool_pools() */
    result<std::vector<gpupool_pool>> try_pools() const {
        std::vector<gpupool_pool> pools;
        std::size_t count = 8;
        do {
            pools.resize(count);
            int r = gpupool_pools(get(), pools.data(), pools.size(), &count);
            if (r < 0)
                return failure(r);
        } while (count > pools.size());
        pools.resize(count);
        return pools;
    }
    /** gpupool_attach(): the stream waits for the work that the token names. */
    result<buffer> try_attach(const token &token, stream_ref stream, std::uint32_t flags = 0) const {
        gpupool_buffer raw;
        int r = gpupool_attach(get(), &token.get(), stream.get(), flags, &raw);
        return r < 0 ? result<buffer>(failure(r)) : result<buffer>(buffer(name_, raw, stream));
    }
    /** gpupool_revoke(): for a token whose parcel was handed on. */
    result<void> try_revoke(const token &token) const {
        return detail::result_of(gpupool_revoke(get(), &token.get()));
    }
    /** gpupool_trim(): how many bytes went back to the daemon. */
    result<std::uint64_t> try_trim() const {
        std::uint64_t bytes = 0;
        int r = gpupool_trim(get(), &bytes);
        return r < 0 ? result<std::uint64_t>(failure(r)) : result<std::uint64_t>(bytes);
    }
    /** gpupool_copy() and gpupool_set(), on streams that are no gpupool::stream */
    result<void> try_copy(int device, void *to, const void *from, std::uint64_t size_bytes,
                          stream_ref stream) const {
        return detail::result_of(gpupool_copy(get(), device, to, from, size_bytes, stream.get()));
    }
    result<void> try_set(int device, void *memory, int byte, std::uint64_t size_bytes,
                         stream_ref stream) const {
        return detail::result_of(gpupool_set(get(), device, memory, byte, size_bytes, stream.get()));
    }

#if defined(__cpp_exceptions)
    static client open(const gpupool_options &wanted = options()) {
        return try_open(wanted).value();
    }
    static client open_default() {
        return try_open_default().value();
    }
    void synchronize(int device) const {
        try_synchronize(device).value();
    }
    pool device_pool(int device = -1) const {
        return try_device_pool(device).value();
    }
    pool host_pool(int numa_node = -1) const {
        return try_host_pool(numa_node).value();
    }
    std::vector<gpupool_pool> pools() const {
        return try_pools().value();
    }
    buffer attach(const token &token, stream_ref stream, std::uint32_t flags = 0) const {
        return try_attach(token, stream, flags).value();
    }
    void revoke(const token &token) const {
        try_revoke(token).value();
    }
    std::uint64_t trim() const {
        return try_trim().value();
    }
    void copy(int device, void *to, const void *from, std::uint64_t size_bytes, stream_ref stream) const {
        try_copy(device, to, from, size_bytes, stream).value();
    }
    void set(int device, void *memory, int byte, std::uint64_t size_bytes, stream_ref stream) const {
        try_set(device, memory, byte, size_bytes, stream).value();
    }
#endif

  private:
    friend class opened_name;
    friend class buffer;
    friend class pool;
    friend class stream;
    client(detail::client_name name, bool is_borrowed) noexcept : name_(name), is_borrowed_(is_borrowed) {}

    detail::client_name name_;
    bool is_borrowed_ = false;
};

inline buffer buffer::adopt(const client &owner, const gpupool_buffer &raw, stream_ref stream) noexcept {
    return buffer(owner.name_, raw, stream);
}
inline pool::pool(const client &owner, std::uint32_t id) noexcept : client_(owner.name_), id_(id) {}

/* --- streams --- */

/**
 * A stream that does not wait for the legacy default stream. Its end waits for its work, and gives the memory
 * that the client keeps for it back to the daemon. Buffers that are given back on it go before: declare a
 * stream before its buffers, and its client before both. A stream that outlives its client is not destroyed,
 * and lasts as long as the process.
 */
class stream {
  public:
    stream() noexcept = default;
    stream(stream &&other) noexcept
        : client_(std::exchange(other.client_, {})), handle_(std::exchange(other.handle_, nullptr)),
          device_(other.device_) {}
    stream &operator=(stream &&other) noexcept {
        if (this != &other) {
            drop();
            client_ = std::exchange(other.client_, {});
            handle_ = std::exchange(other.handle_, nullptr);
            device_ = other.device_;
        }
        return *this;
    }
    ~stream() { drop(); }

    /** gpupool_stream_create() */
    static result<stream> try_create(const client &owner, int device = 0) {
        void *handle = nullptr;
        int r = gpupool_stream_create(owner.get(), device, &handle);
        return r < 0 ? result<stream>(failure(r)) : result<stream>(adopt(owner, device, handle));
    }
    /** Takes a created stream, which CUDA may have made. */
    static stream adopt(const client &owner, int device, void *handle) noexcept {
        stream made;
        made.client_ = owner.name_;
        made.handle_ = handle;
        made.device_ = device;
        return made;
    }
    /** Hands the stream to the caller, who destroys it by gpupool_stream_destroy(). */
    void *take() noexcept {
        client_ = {};
        return std::exchange(handle_, nullptr);
    }
    /** Lends the stream, a cudaStream_t. */
    void *get() const noexcept { return handle_; }
    int device() const noexcept { return device_; }
    explicit operator bool() const noexcept { return client_.get() != nullptr; }

    /** gpupool_stream_synchronize() */
    result<void> try_synchronize() const {
        return detail::result_of(gpupool_stream_synchronize(client_.get(), device_, handle_));
    }
    /** gpupool_stream_is_captured() */
    result<bool> try_is_captured() const {
        int captured = 0;
        int r = gpupool_stream_is_captured(client_.get(), device_, handle_, &captured);
        return r < 0 ? result<bool>(failure(r)) : result<bool>(captured != 0);
    }
    /** gpupool_copy() and gpupool_set() */
    result<void> try_copy(void *to, const void *from, std::uint64_t size_bytes) const {
        return detail::result_of(gpupool_copy(client_.get(), device_, to, from, size_bytes, handle_));
    }
    result<void> try_set(void *memory, int byte, std::uint64_t size_bytes) const {
        return detail::result_of(gpupool_set(client_.get(), device_, memory, byte, size_bytes, handle_));
    }
    /** Waits for the stream's work, then gpupool_stream_destroy(). After a failure the stream is as it was.
     */
    result<void> try_destroy() {
        int r = destroy_raw();
        if (r == 0)
            static_cast<void>(take());
        return detail::result_of(r);
    }

#if defined(__cpp_exceptions)
    static stream create(const client &owner, int device = 0) {
        return try_create(owner, device).value();
    }
    void synchronize() const {
        try_synchronize().value();
    }
    bool is_captured() const {
        return try_is_captured().value();
    }
    void copy(void *to, const void *from, std::uint64_t size_bytes) const {
        try_copy(to, from, size_bytes).value();
    }
    void set(void *memory, int byte, std::uint64_t size_bytes) const {
        try_set(memory, byte, size_bytes).value();
    }
    void destroy() {
        try_destroy().value();
    }
#endif

  private:
    /* Waits by a fence: gpupool_stream_synchronize() may return LOST, once, which is for a call of the
     * program. */
    int destroy_raw() noexcept {
        gpupool_client *client = client_.get();
        gpupool_fence fence;
        if (client == nullptr)
            return 0;
        int r = gpupool_fence_record(client, device_, &fence, handle_);
        if (r == 0)
            r = gpupool_fence_wait_host(client, &fence, GPUPOOL_FOREVER);
        return r < 0 ? r : gpupool_stream_destroy(client, device_, handle_);
    }
    void drop() noexcept {
        static_cast<void>(destroy_raw());
        static_cast<void>(take());
    }

    detail::client_name client_;
    void *handle_ = nullptr;
    int device_ = 0;
};

inline stream_ref::stream_ref(const stream &stream) noexcept : stream_ref(stream.get()) {
    assert(stream.get() != nullptr); /* an empty one is not the legacy default stream */
}

} /* namespace gpupool */
#endif
