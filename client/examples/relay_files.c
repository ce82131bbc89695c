/* SPDX-License-Identifier: Apache-2.0 */
/* Which files are relayed, and whether they arrived. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "relay.h"

/* The size of the files that the program chooses when the command line names none: enough to be worth timing,
 * little enough for any machine. A file of gigabytes (a driver's library) would use all of the total, so the
 * largest files are left out. */
#define CHOICE_TOTAL_BYTES (48 * MIB)
#define CHOICE_FILE_BYTES  (12 * MIB)

const char *copy_path(const char *directory, uint32_t file, char path[COPY_PATH_SIZE]) {
    snprintf(path, COPY_PATH_SIZE, "%.*s/%u", (int)DIRECTORY_SIZE, directory, file);
    return path;
}

int files_add(struct file_list *files, const char *path) {
    struct stat status;

    if (stat(path, &status) < 0)
        return fail_system("%s", path);
    if (!S_ISREG(status.st_mode))
        return fail("%s is not a regular file", path);
    if (access(path, R_OK) < 0)
        return fail_system("reading %s", path);
    char **paths = realloc(files->paths, (files->count + 1) * sizeof *paths);
    if (paths == NULL)
        return fail_system("listing files");
    files->paths = paths;
    char *copy = strdup(path);
    if (copy == NULL)
        return fail_system("listing files");
    files->paths[files->count++] = copy;
    files->size_bytes += (uint64_t)status.st_size;
    return 0;
}

void files_deinit(struct file_list *files) {
    for (size_t i = 0; i < files->count; i++)
        free(files->paths[i]);
    free(files->paths);
    *files = (struct file_list){0};
}

struct candidate {
    uint64_t size_bytes;
    char *path;
};

/* nftw() has no argument for its callback. */
static struct candidate *candidates;
static size_t n_candidates, room_for_candidates;

static int consider(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)place;
    if (kind != FTW_F || !S_ISREG(status->st_mode) || status->st_size == 0 ||
        (uint64_t)status->st_size > CHOICE_FILE_BYTES)
        return 0;
    if (n_candidates == room_for_candidates) {
        size_t room = room_for_candidates > 0 ? 2 * room_for_candidates : 1024;
        struct candidate *more = realloc(candidates, room * sizeof *candidates);
        if (more == NULL)
            return -1;
        candidates = more;
        room_for_candidates = room;
    }
    char *copy = strdup(path);
    if (copy == NULL)
        return -1;
    candidates[n_candidates++] = (struct candidate){(uint64_t)status->st_size, copy};
    return 0;
}

/* The largest first; by name where they are alike, so that the choice is the same each time. */
static int compare_candidates(const void *a, const void *b) {
    const struct candidate *left = a, *right = b;
    if (left->size_bytes != right->size_bytes)
        return left->size_bytes < right->size_bytes ? 1 : -1;
    return strcmp(left->path, right->path);
}

int files_choose(struct file_list *files) {
    static const char *const places[] = {"/usr/bin", "/usr/lib"};
    int r = 0;

    for (size_t i = 0; i < sizeof places / sizeof *places && r == 0; i++)
        if (nftw(places[i], consider, 32, FTW_PHYS) < 0 && errno != ENOENT)
            r = fail_system("looking for files under %s", places[i]);
    if (r == 0 && n_candidates > 0)
        qsort(candidates, n_candidates, sizeof *candidates, compare_candidates);
    for (size_t i = 0; i < n_candidates; i++) {
        if (r == 0 && files->size_bytes < CHOICE_TOTAL_BYTES && access(candidates[i].path, R_OK) == 0)
            r = files_add(files, candidates[i].path);
        free(candidates[i].path);
    }
    free(candidates);
    candidates = NULL;
    n_candidates = room_for_candidates = 0;
    if (r == 0 && files->count == 0)
        return fail("no files under /usr/bin and /usr/lib: name some on the command line");
    return r;
}

static int compare_streams(FILE *original, FILE *copy, const char *path, uint64_t *ret_bytes) {
    static char left[1 << 16], right[1 << 16];
    uint64_t offset = 0;

    for (;;) {
        size_t n_left = fread(left, 1, sizeof left, original), n_right = fread(right, 1, sizeof right, copy);
        if (ferror(original) || ferror(copy))
            return fail_system("reading %s or its copy", path);
        size_t common = n_left < n_right ? n_left : n_right;
        for (size_t i = 0; i < common; i++)
            if (left[i] != right[i])
                return fail("%s: its copy differs at byte %llu", path, (unsigned long long)offset + i);
        offset += common;
        if (n_left != n_right)
            return fail("%s: its copy is %s, from byte %llu on", path,
                        n_left < n_right ? "longer" : "shorter", (unsigned long long)offset);
        if (n_left == 0) {
            *ret_bytes += offset;
            return 0;
        }
    }
}

int files_compare(const struct file_list *files, const char *directory) {
    uint64_t bytes = 0;

    for (size_t i = 0; i < files->count; i++) {
        char path[COPY_PATH_SIZE];
        FILE *original = fopen(files->paths[i], "re");
        FILE *copy = fopen(copy_path(directory, (uint32_t)i, path), "re");
        int r = original == NULL || copy == NULL ? fail_system("opening %s or its copy", files->paths[i])
                                                 : compare_streams(original, copy, files->paths[i], &bytes);
        if (original != NULL)
            fclose(original);
        if (copy != NULL)
            fclose(copy);
        if (r < 0)
            return r;
    }
    printf("   compared byte by byte: %zu file%s, %.1f MiB, all alike\n", files->count,
           files->count == 1 ? "" : "s", (double)bytes / (double)MIB);
    return 0;
}
