/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A main() for builds without libFuzzer: plays each file that it is given, and each file of a directory, in
 * the order of their names. It fails where there is nothing to play.
 *
 *   fuzz_NAME FILE-OR-DIRECTORY...
 */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "tests/fuzz/fuzz.h"

#define INPUT_MAX (UINT32_C(1) << 20) /* as libFuzzer's -max_len at most */

static unsigned played;

static bool play_file(const char *path) {
    static uint8_t whole[INPUT_MAX];

    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    if (file == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return false;
    }
    size_t size = fread(whole, 1, sizeof whole, file);
    /* A copy of just that size: the sanitizer then sees a read beyond the end. */
    _cleanup_(freep) uint8_t *data = malloc(size > 0 ? size : 1);
    MUST(data != NULL && !ferror(file) && feof(file));
    memcpy(data, whole, size);
    /* Printed before the run: the last path is the input that crashed. */
    if (getenv("FUZZ_VERBOSE") != NULL)
        fprintf(stderr, "%s\n", path);
    LLVMFuzzerTestOneInput(data, size);
    played++;
    return true;
}

static bool play_directory(const char *path) {
    struct dirent **entries;
    bool well = true;

    int n = scandir(path, &entries, NULL, alphasort);
    if (n < 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return false;
    }
    for (int i = 0; i < n; i++) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.')
            well = play_file(file) && well;
        free(entries[i]);
    }
    free(entries);
    return well;
}

int main(int argc, char **argv) {
    bool well = true;

    for (int i = 1; i < argc; i++) {
        struct stat status;
        bool is_directory = stat(argv[i], &status) == 0 && S_ISDIR(status.st_mode);
        well = (is_directory ? play_directory(argv[i]) : play_file(argv[i])) && well;
    }
    printf("%u inputs played\n", played);
    return well && played > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
