/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PRELOAD_PROGRAM_H
#define TESTS_PRELOAD_PROGRAM_H
/* The common part of the test programs: they know nothing of gpupool, but to see whose memory it is they ask
 * the library that the preload library has brought along. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB ((size_t)1 << 20)

/* Why gpupool refused something last, in this thread. */
static inline const char *refusal(void) {
    const char *(*error_text)(void);

    *(void **)&error_text = dlsym(RTLD_DEFAULT, "gpupool_error_text");
    return error_text == NULL ? "no gpupool here" : error_text();
}

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, refusal());                  \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)

/* Whether memory begins there that gpupool lent. */
static inline bool is_lent(const void *memory) {
    char buffer[256]; /* struct gpupool_buffer and more */
    int (*lookup)(const void *memory, void **ret_client, void *ret_buffer);

    *(void **)&lookup = dlsym(RTLD_DEFAULT, "gpupool_lookup");
    return lookup != NULL && lookup(memory, NULL, buffer) == 0;
}

/* One line for the test that runs the program, which then does something and answers with a line. */
static inline void wait_for_test(const char *what) {
    char line[64];

    printf("%s\n", what);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

#endif
