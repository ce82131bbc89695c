/* SPDX-License-Identifier: Apache-2.0 */
/* A synchronised array as a C++ program uses it, mostly on the per-thread default stream, which
 * need not be said. */
extern "C" { /* as some do for any header of a C library: it has to bear that */
#include <gpupool/synced.h>
}

#include "cplusplus.h"

#include <cstring>
#include <type_traits>

/* By type: to read gives constant elements. */
static void try_types(gpupool_client *client) {
    gpupool_synced *array = nullptr;
    gpupool_synced_info info;

    check(gpupool_synced_create(client, GPUPOOL_DEVICE_OF_FIRST_ACCESS, 100 * sizeof(int), &array) == 0, "create");
    static_assert(std::is_same<decltype(gpupool_synced_read_host<int>(array)), const int *>::value, "constant");
    static_assert(std::is_same<decltype(gpupool_synced_read_device<int>(array)), const int *>::value, "constant");
    static_assert(std::is_same<decltype(gpupool_synced_write_host<int>(array)), int *>::value, "not constant");
    int *host = gpupool_synced_overwrite_host<int>(array);
    check(host != nullptr, "overwrite on the host");
    for (int i = 0; i < 100; i++)
        host[i] = i;
    check(gpupool_synced_read_device<int>(array, nullptr) != nullptr, "read on the device");
    int *device = gpupool_synced_write_device<int>(array);
    check(device != nullptr && gpupool_set(client, 0, device, 0, 50 * sizeof(int)) == 0, "write on the device");
    const int *back = gpupool_synced_read_host<int>(array);
    check(back == host && back[49] == 0 && back[50] == 50, "read on the host");
    check(gpupool_synced_write_host<int>(array) == host, "write on the host");
    check(gpupool_synced_overwrite_device<int>(array) == device, "overwrite on the device");
    check(GPUPOOL_SYNCED_READ_DEVICE(array, int, nullptr) == device, "as in C");
    check(gpupool_synced_query(array, &info) == 0 && info.copies_to_device == 1 && info.copies_to_host == 1, "copies");
    check(gpupool_synced_resize(array, 0) == 0 && gpupool_synced_read_host<int>(array) == host, "no bytes");
    check(gpupool_synced_destroy(array) == 0, "destroy");
    check(gpupool_synced_read_host<int>(nullptr) == nullptr && gpupool_error_number() == GPUPOOL_E_INVALID, "the error");
}

static void try_it(gpupool_client *client) {
    gpupool_synced *array = nullptr;
    gpupool_synced_info info;
    void *memory = nullptr;

    check(gpupool_synced_create(client, 0, 4096, &array) == 0, "create");
    check(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory) == 0, "host");
    std::memset(memory, 5, 4096);
    check(gpupool_synced_push(array) == 0, "push");
    check(gpupool_synced_device(array, GPUPOOL_WRITE, &memory, nullptr) == 0, "device");
    check(gpupool_set(client, 0, memory, 6, 1000, nullptr) == 0, "set");
    check(gpupool_synced_pull(array) == 0, "pull");
    check(gpupool_synced_host(array, GPUPOOL_READ, &memory) == 0, "back");
    const char *bytes = static_cast<const char *>(memory);
    check(bytes[0] == 6 && bytes[999] == 6 && bytes[1000] == 5 && bytes[4095] == 5, "contents");
    check(gpupool_synced_query(array, &info) == 0, "info");
    check(info.state == GPUPOOL_SYNCED_IN_STEP && info.copies_to_device == 1 && info.copies_to_host == 1, "copies");
    check(info.host_owner == GPUPOOL_OWNER_POOL && info.device_owner == GPUPOOL_OWNER_POOL, "owners");
    char own[100] = {1};
    check(gpupool_synced_resize(array, sizeof own) == 0, "resize");
    check(gpupool_synced_adopt_host(array, own) == 0, "adopt");
    check(gpupool_synced_device(array, GPUPOOL_READ, &memory) == 0, "adopted");
    check(gpupool_synced_move(array, 0) == 0, "move");
    check(gpupool_synced_settle(array) == 0, "settle");
    check(gpupool_synced_destroy(array) == 0, "destroy");
    try_types(client);
}

int main() {
    return run("synced", try_it);
}
