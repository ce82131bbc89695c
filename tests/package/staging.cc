/* SPDX-License-Identifier: Apache-2.0 */
/* Staging as a C++ program uses it: a file goes to a device, and comes back, on the per-thread default
 * stream, which need not be said. */
#include <gpupool/staging.h>

#include "cplusplus.h"

#include <cstdint>
#include <cstdio>
#include <vector>

static void try_it(gpupool_client *client) {
    std::vector<std::uint8_t> from(3000001), to(from.size());
    std::uint32_t pool = 0;

    for (std::size_t i = 0; i < from.size(); i++)
        from[i] = static_cast<std::uint8_t>(i % 251);
    std::FILE *file = std::tmpfile();
    check(file != nullptr && std::fwrite(from.data(), 1, from.size(), file) == from.size() &&
              std::fflush(file) == 0,
          "a file");
    check(gpupool_device_pool(client, 0, &pool) == 0, "pool");
    void *memory = gpupool_alloc(client, pool, from.size(), nullptr);
    check(memory != nullptr, "alloc");
    check(gpupool_upload_file(client, 0, memory, fileno(file), 0, from.size()) == 0, "up from a file");
    check(gpupool_download(client, 0, to.data(), memory, to.size()) == 0 && from == to, "down");
    from.assign(from.size(), 7);
    check(gpupool_upload(client, 0, memory, from.data(), from.size()) == 0, "up");
    check(gpupool_download(client, 0, to.data(), memory, to.size()) == 0 && from == to, "and down again");
    check(gpupool_upload_file(client, 0, memory, fileno(file), 1, from.size()) == GPUPOOL_E_INVALID,
          "beyond its end");
    check(gpupool_free(memory, nullptr) == 0, "free");
    std::fclose(file);
}

int main() {
    return run("staging", try_it);
}
