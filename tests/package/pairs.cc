/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs as a C++ program uses them: by type, and on the per-thread default stream, which need not be said. */
extern "C" { /* as some do for any header of a C library: it has to bear that */
#include <gpupool/pair.h>
}

#include "cplusplus.h"

#include <cstdint>
#include <limits>

struct box {
    float left, top, right, bottom;
    std::int32_t kind;
};

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
}

int main() {
    return run("pairs", try_it);
}
