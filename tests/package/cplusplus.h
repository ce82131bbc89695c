/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PACKAGE_CPLUSPLUS_H
#define TESTS_PACKAGE_CPLUSPLUS_H
/* The common part of the C++ programs of the memory objects. Each program includes the header that it tries
 * before this one, so that the header has to stand by itself. */
#include <gpupool/gpupool.h>

#include <cstdio>
#include <stdexcept>
#include <string>

static void check(bool holds, const char *what) {
    if (!holds)
        throw std::runtime_error(std::string(what) + ": " + gpupool_error_text());
}

/* The body of main(): runs the program with a client, and says that it went well. */
static int run(const char *name, void (*try_it)(gpupool_client *client)) {
    gpupool_client *client = nullptr;
    try {
        check(gpupool_open(nullptr, &client) == 0, "open");
        try_it(client);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    gpupool_close(client);
    std::printf("%s in C++\n", name);
    return 0;
}

#endif
