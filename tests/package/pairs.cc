/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs as a C++ program uses them: by type, with streams left out, and as an object that gives its memory back. */
extern "C" { /* as some do for any header of a C library: it has to bear that */
#include <gpupool/pair.h>
}

#include "cplusplus.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

struct box {
    float left, top, right, bottom;
    std::int32_t kind;
};

/* A created stream that is busy for a while, and then writes some memory. */
class late_writer {
  public:
    explicit late_writer(gpupool_client *client) : client_(client), stream_(nullptr), load_() {
        std::uint32_t pool = 0;
        check(gpupool_device_pool(client, 0, &pool) == 0, "pool");
        check(gpupool_stream_create(client, 0, &stream_) == 0, "stream");
        check(gpupool_acquire(client, pool, load_bytes, stream_, GPUPOOL_FOREVER, 0, &load_) == 0, "load");
    }
    late_writer(const late_writer &) = delete;
    late_writer &operator=(const late_writer &) = delete;
    ~late_writer() {
        (void)gpupool_release(client_, &load_, stream_);
        (void)gpupool_stream_destroy(client_, 0, stream_);
    }
    void write(void *memory, std::uint64_t size_bytes) {
        for (int i = 0; i < 40; i++)
            check(gpupool_set(client_, 0, load_.data, i, load_bytes, stream_) == 0, "load");
        check(gpupool_set(client_, 0, memory, 0x77, size_bytes, stream_) == 0, "late write");
    }
    void finish() { check(gpupool_stream_synchronize(client_, 0, stream_) == 0, "synchronize"); }

  private:
    static const std::uint64_t load_bytes = std::uint64_t(64) << 20;
    gpupool_client *client_;
    void *stream_;
    gpupool_buffer load_;
};

/* Those who get memory of the pool next, as long as the stream is still busy, and find what they wrote. */
static void expect_own_contents(gpupool_client *client, std::uint32_t pool, late_writer *writer) {
    const std::uint64_t size_bytes = 4096;
    void *const streams[] = {GPUPOOL_PER_THREAD, GPUPOOL_NO_STREAM};
    std::vector<gpupool_buffer> owners;
    std::vector<unsigned char> bytes(size_bytes);

    check(gpupool_stream_synchronize(client, 0) == 0, "synchronize"); /* what waits for this stream alone is free then */
    for (int i = 0; i < 64; i++) {
        gpupool_buffer buffer;
        check(gpupool_acquire(client, pool, size_bytes, streams[i % 2], GPUPOOL_FOREVER, 0, &buffer) == 0, "acquire");
        check(gpupool_set(client, 0, buffer.data, 0x11, size_bytes) == 0, "set");
        owners.push_back(buffer);
    }
    check(gpupool_stream_synchronize(client, 0) == 0, "synchronize");
    writer->finish();
    for (gpupool_buffer &buffer : owners) {
        check(gpupool_copy(client, 0, bytes.data(), buffer.data, size_bytes) == 0, "copy");
        check(gpupool_stream_synchronize(client, 0) == 0, "synchronize");
        check(bytes == std::vector<unsigned char>(size_bytes, 0x11), "the next owner's contents");
        check(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM) == 0, "release");
    }
}

/* The program works on a stream of its own, and names none to the pair: its old block is not lent again meanwhile. */
static void try_left_out_streams(gpupool_client *client) {
    late_writer writer(client);
    gpupool_pair pair;

    check(gpupool_pair_init(&pair, client, 0, 0) == 0, "init");
    for (int round = 0; round < 4; round++) {
        char *old = gpupool_pair_device<char>(&pair, 4096);
        check(old != nullptr, "device");
        const std::uint32_t pool = pair.on_device.buffer.pool;
        writer.write(old, 4096);
        if (round == 0)
            check(gpupool_pair_device<char>(&pair, 1 << 20) != nullptr, "growth");
        else if (round == 1)
            check(gpupool_pair_adopt_device(&pair, nullptr, 0) == 0, "adopting nothing");
        else if (round == 2)
            check(gpupool_pair_clear_device(&pair) == 0, "clearing the side");
        else
            check(gpupool_pair_clear(&pair) == 0, "clearing");
        expect_own_contents(client, pool, &writer);
        check(gpupool_pair_clear(&pair) == 0, "clearing");
    }
    { /* and so for an object that goes */
        gpupool::pair object;
        check(object.init(client, 0) == 0, "init");
        char *memory = object.device<char>(4096);
        check(memory != nullptr, "device");
        const std::uint32_t pool = object.get()->on_device.buffer.pool;
        writer.write(memory, 4096);
        gpupool::pair next;
        object = std::move(next);
        expect_own_contents(client, pool, &writer);
    }
}

static gpupool::pair make(gpupool_client *client) {
    gpupool::pair made;
    check(made.init(client, 0, GPUPOOL_PAIR_ZERO) == 0, "init");
    check(made.host<int>(100) != nullptr && made.device<int>(100) != nullptr, "memory");
    return made;
}

static void try_objects(gpupool_client *client) {
    gpupool::pair empty, object = make(client), other;
    const gpupool::pair &constant = object;

    check(empty.host<int>() == nullptr && empty.get()->client == nullptr, "empty");
    int *host = object.host<int>(100);
    check(host == object.host<int>() && constant.host<int>() == host, "host");
    check(object.device<int>(50) == object.device<int>() && constant.device<int>() == object.device<int>(), "device");
    check(object.get()->on_device.size_bytes == 50 * sizeof(int) && constant.get()->host.size_bytes == 100 * sizeof(int),
          "sizes");
    host[99] = 5;
    check(object.copy_to_device(100 * sizeof(int)) == 0 && gpupool_stream_synchronize(client, 0) == 0, "to the device");
    host[99] = 6;
    check(object.copy_to_host(100 * sizeof(int)) == 0 && gpupool_stream_synchronize(client, 0) == 0, "to the host");
    check(host[99] == 5, "there and back");
    other = std::move(object);
    check(other.host<int>() == host && host[99] == 5, "moved");
    check(constant.host<int>() == nullptr && object.clear() == 0, "moved from");
    check(other.clear_device() == 0 && other.device<int>() == nullptr && other.host<int>() == host, "one side");
    check(other.clear_host() == 0 && other.host<int>() == nullptr, "the other");
    char own[64];
    check(other.adopt_host(own, sizeof own) == 0 && other.host<char>() == own, "adopted");
    check(other.adopt_host(nullptr, 0) == 0 && other.host<char>() == nullptr, "emptied");
    check(other.adopt_device(nullptr, 0) == 0, "emptied");
    check(other.init(client, 0) == 0 && other.device<char>(1) != nullptr && other.init(client, 0) == 0, "again");
    check(other.device<char>() == nullptr, "new");
    check(other.device<char>(std::numeric_limits<std::uint64_t>::max()) == nullptr &&
              gpupool_error_number() == GPUPOOL_E_TOO_LARGE,
          "the error");
}

static void try_it(gpupool_client *client) {
    gpupool_pair pair;
    void *memory = nullptr;

    check(gpupool_pair_init(&pair, client, 0, GPUPOOL_PAIR_ZERO) == 0, "init");
    for (std::uint64_t count = 1; count < 100000; count *= 3) {
        box *host = gpupool_pair_host<box>(&pair, count);
        box *device = gpupool_pair_device<box>(&pair, count);
        check(host != nullptr && device != nullptr, "by type");
        check(pair.host.size_bytes == count * sizeof(box) && pair.on_device.size_bytes == count * sizeof(box), "size");
        check(host[count - 1].kind == 0, "zero");
        host[count - 1].kind = 7;
        check(gpupool_pair_copy_to_device(&pair, count * sizeof(box)) == 0, "to the device");
        check(gpupool_stream_synchronize(client, 0) == 0, "synchronize");
        host[count - 1].kind = 8;
        check(gpupool_pair_copy_to_host(&pair, count * sizeof(box)) == 0, "to the host");
        check(gpupool_stream_synchronize(client, 0) == 0, "synchronize");
        check(host[count - 1].kind == 7, "there and back");
        check(GPUPOOL_PAIR_HOST(&pair, box, count, nullptr) == host, "as in C");
        check(GPUPOOL_PAIR_DEVICE(&pair, box, count, nullptr) == device, "as in C");
        check(gpupool_pair_host(&pair, count, &memory) == 0 && memory == host, "by bytes");
        check(gpupool_pair_device(&pair, count, &memory) == 0 && memory == device, "by bytes");
    }
    const std::uint64_t too_many = std::numeric_limits<std::uint64_t>::max() / sizeof(box) + 1;
    check(gpupool_pair_host<box>(&pair, too_many) == nullptr && gpupool_pair_device<box>(&pair, too_many) == nullptr,
          "too many");
    char own[64];
    check(gpupool_pair_adopt_host(&pair, own, sizeof own) == 0, "adopt");
    check(gpupool_pair_host<char>(&pair, sizeof own) == own && pair.host.owner == GPUPOOL_OWNER_USER, "adopted");
    check(gpupool_pair_clear(&pair) == 0, "clear");
    check(pair.host.data == nullptr && pair.on_device.owner == GPUPOOL_OWNER_NONE, "cleared");
    try_left_out_streams(client);
    try_objects(client);
}

int main() {
    return run("pairs", try_it);
}
