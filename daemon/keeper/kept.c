/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

#define NAMELESS "stored"

/* With names of four characters, as daemon/loop/store.h has them. */
_Static_assert(sizeof KEPT_NAMES + KEPT_MAX * 5 <= KEPT_STRING_MAX,
               "all that are kept have their names in the environment");

void kept_init(struct kept *kept, size_t limit) {
    *kept = (struct kept){.limit = limit < KEPT_MAX ? limit : KEPT_MAX};
}

static void forget(struct kept *kept, struct kept_fd *entry) {
    close_fd(entry->fd);
    kept->names_bytes -= strlen(entry->name) + 1;
    free(entry->name);
    *entry = kept->all[--kept->count];
}

void kept_deinit(struct kept *kept) {
    while (kept->count > 0)
        forget(kept, &kept->all[kept->count - 1]);
    free(kept->all);
    *kept = (struct kept){0};
}

/* Printable characters of ASCII without the colon, which stands between names. */
static bool name_is_sound(const char *name) {
    size_t length = strlen(name);

    if (length == 0 || length > KEPT_NAME_MAX)
        return false;
    for (; *name != '\0'; name++)
        if (*name < ' ' || *name > '~' || *name == ':')
            return false;
    return true;
}

/* Whether both are of one open file. The inodes are equal then, which spares the question to the kernel in
 * most cases. A kernel without kcmp() cannot tell: two descriptors are two files then. */
static bool is_same_file(const struct kept_fd *entry, int fd, const struct stat *status) {
    return entry->device == status->st_dev && entry->inode == status->st_ino &&
           syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, entry->fd, fd) == 0;
}

int kept_add(struct kept *kept, int fd, const char *name) {
    _cleanup_(close_fdp) int owned = fd;
    struct stat status;

    if (name == NULL || !name_is_sound(name))
        name = NAMELESS;
    if (fstat(fd, &status) < 0)
        return -errno;
    if (kept->count >= kept->limit)
        return -ENOSPC;
    for (size_t i = 0; i < kept->count; i++)
        if (is_same_file(&kept->all[i], fd, &status))
            return 0;
    size_t bytes = strlen(name) + 1; /* of the last name it is the NUL's */
    if (strlen(KEPT_NAMES) + kept->names_bytes + bytes > KEPT_STRING_MAX)
        return -E2BIG;
    struct kept_fd *all = array_room(kept->all, kept->count, &kept->capacity, sizeof *all);
    if (all == NULL)
        return -ENOMEM;
    kept->all = all;
    char *copy = strdup(name);
    if (copy == NULL)
        return -ENOMEM;
    all[kept->count++] = (struct kept_fd){copy, take_fd(&owned), status.st_dev, status.st_ino};
    kept->names_bytes += bytes;
    return 1;
}

size_t kept_remove(struct kept *kept, const char *name) {
    size_t before = kept->count;

    for (size_t i = kept->count; i-- > 0;)
        if (strcmp(kept->all[i].name, name) == 0)
            forget(kept, &kept->all[i]);
    return before - kept->count;
}

static int compare_numbers(const void *a, const void *b) {
    const struct kept_fd *first = a, *second = b;
    return first->fd < second->fd ? -1 : first->fd > second->fd;
}

char *kept_list(struct kept *kept) {
    char *list = malloc(sizeof KEPT_NAMES + kept->names_bytes);
    if (list == NULL)
        return NULL;
    if (kept->count > 0)
        qsort(kept->all, kept->count, sizeof *kept->all, compare_numbers);
    char *end = stpcpy(list, KEPT_NAMES);
    for (size_t i = 0; i < kept->count; i++) {
        if (i > 0)
            *end++ = ':';
        end = stpcpy(end, kept->all[i].name);
    }
    return list;
}

int kept_pass(const struct kept *kept) {
    /* The descriptors are distinct, none is below KEPT_FIRST_FD, and their numbers rise. So the number that
     * one gets is at most its own, and below those of all that follow: none is overwritten before its turn. */
    for (size_t i = 0; i < kept->count; i++) {
        int number = KEPT_FIRST_FD + (int)i, fd = kept->all[i].fd;
        int r = fd == number ? fcntl(fd, F_SETFD, 0) : dup2(fd, number);
        if (r < 0)
            return -errno;
    }
    return 0;
}
