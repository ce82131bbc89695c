/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_PROGRAMS_TURNS_H
#define TESTS_GPU_PROGRAMS_TURNS_H
/*
 * The conversation of a program with programs.py, as turns.py describes it. The program defines a step that
 * ends with its work on the GPU. Two more functions return the bytes that it holds, and its results.
 */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <vector>

#define EXPECT(condition)                                                                                    \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                             \
            std::exit(1);                                                                                    \
        }                                                                                                    \
    } while (0)

[[noreturn]] inline void skip(const std::string &why) {
    std::printf("skip %s\n", why.c_str());
    std::fflush(stdout);
    std::exit(77);
}

/* Whether memory begins there that gpupool lent. */
inline bool is_lent(const void *memory) {
    using lookup_call = int (*)(const void *, void **, void *);
    char buffer[256];
    auto lookup = reinterpret_cast<lookup_call>(dlsym(RTLD_DEFAULT, "gpupool_lookup"));
    return lookup != nullptr && lookup(memory, nullptr, buffer) == 0;
}

template <typename Step> double median_ms(Step step, int steps) {
    std::vector<double> times;
    for (int i = 0; i < steps; i++) {
        auto start = std::chrono::steady_clock::now();
        step();
        times.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

/* step(), held() in bytes, sum() as a number. Returns the program's exit status. */
template <typename Step, typename Held, typename Sum>
int converse(int argc, char **argv, Step step, Held held, Sum sum, int steps = 20) {
    char line[64];

    if (argc >= 3 && std::strcmp(argv[argc - 2], "alone") == 0) {
        for (int i = 0; i < std::atoi(argv[argc - 1]); i++)
            median_ms(step, steps);
        std::printf("\nsum %.9g\n",
                    static_cast<double>(sum())); /* a debugger may be in the middle of a line */
        std::fflush(stdout);
        return 0;
    }
    std::printf("ready\n");
    std::fflush(stdout);
    while (std::fgets(line, sizeof line, stdin) != nullptr) {
        if (std::strcmp(line, "round\n") == 0)
            std::printf("step %.6f\n", median_ms(step, steps));
        else if (std::strcmp(line, "hold\n") == 0)
            std::printf("bytes %llu\n", static_cast<unsigned long long>(held()));
        else if (std::strcmp(line, "end\n") == 0)
            std::printf("sum %.9g\n", static_cast<double>(sum()));
        std::fflush(stdout);
        if (std::strcmp(line, "end\n") == 0)
            return 0;
    }
    std::fprintf(stderr, "the conversation was cut\n");
    return 1;
}

#endif
