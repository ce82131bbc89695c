/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/estate_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/estate/estate.h"
#include "daemon/loop/desk.h"

/* Addresses for it to grow into, of which only what is there is ever touched: a session with 4,096 leases has
 * about 3 MiB of records. */
#define ADDRESSES_BYTES ((size_t)(4 * GIB))

/* The kernel drops a process's lock with its end, or where it closes any descriptor of the file: there is one. */
static int lock(int fd) {
    const struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    if (fcntl(fd, F_SETLK, &whole) == 0)
        return 0;
    return errno == EACCES || errno == EAGAIN ? -EBUSY : -errno;
}

static int map(struct estate_file *file, int fd, size_t size_bytes) {
    void *memory = mmap(NULL, ADDRESSES_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (memory == MAP_FAILED)
        return -errno;
    (void)madvise(memory, ADDRESSES_BYTES, MADV_DONTDUMP);
    *file = (struct estate_file){.fd = fd, .memory = memory, .size_bytes = size_bytes};
    return 0;
}

int estate_file_make(struct estate_file *file, struct store *store) {
    const size_t size_bytes = DESK_BYTES + ESTATE_CHUNK_BYTES;

    *file = (struct estate_file){.fd = -1};
    _cleanup_(close_fdp) int fd = memfd_create("gpupool-estate", MFD_CLOEXEC);
    if (fd < 0 || fallocate(fd, 0, 0, (off_t)size_bytes) < 0)
        return -errno;
    int r = lock(fd);
    if (r == 0)
        r = map(file, fd, size_bytes);
    if (r < 0)
        return r;
    (void)take_fd(&fd);
    store_put(store, STORE_ESTATE, file->fd, file->stored);
    if (file->stored[0] != '\0')
        return 0;
    estate_file_close(file);
    return -ENOSPC;
}

int estate_file_take(struct estate_file *file, struct store *store) {
    char name[STORE_NAME_SIZE];
    struct stat status;

    *file = (struct estate_file){.fd = -1};
    _cleanup_(close_fdp) int fd = store_take_kind(store, STORE_ESTATE, name);
    if (fd < 0)
        return -ENOENT;
    int r = lock(fd);
    if (r == 0 && fstat(fd, &status) < 0)
        r = -errno;
    if (r == 0 && (!S_ISREG(status.st_mode) || (size_t)status.st_size < DESK_BYTES + ESTATE_CHUNK_BYTES ||
                   (size_t)status.st_size > ADDRESSES_BYTES))
        r = -EBADMSG;
    if (r == 0)
        r = map(file, fd, (size_t)status.st_size);
    if (r < 0) {
        if (r != -EBUSY)
            store_remove(store, name);
        return r;
    }
    (void)take_fd(&fd);
    for (size_t i = 0; i < sizeof name; i++)
        file->stored[i] = name[i];
    return 0;
}

int estate_file_grow(void *argument, size_t size_bytes) {
    struct estate_file *file = argument;
    size_t wanted_bytes = DESK_BYTES + size_bytes;

    if (wanted_bytes <= file->size_bytes)
        return 0;
    if (wanted_bytes > ADDRESSES_BYTES || fallocate(file->fd, 0, 0, (off_t)wanted_bytes) < 0)
        return -ENOMEM;
    file->size_bytes = wanted_bytes;
    return 0;
}

void *estate_file_estate(const struct estate_file *file) {
    return file->memory + DESK_BYTES;
}

size_t estate_file_estate_bytes(const struct estate_file *file) {
    return file->size_bytes - DESK_BYTES;
}

void estate_file_close(struct estate_file *file) {
    if (file->memory != NULL)
        munmap(file->memory, ADDRESSES_BYTES);
    file->memory = NULL;
    file->fd = close_fd(file->fd);
}
