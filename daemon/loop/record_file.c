/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/core/recorder.h"
#include "daemon/loop/log.h"

#define PATH_SIZE 160u

/* Opens and locks the file. Returns a descriptor or a negative errno. */
static int open_locked(const char *path) {
    _cleanup_(close_fdp) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    struct stat status;

    if (fd < 0 || fstat(fd, &status) < 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || status.st_nlink != 1)
        return -EPERM;
    return flock(fd, LOCK_EX | LOCK_NB) < 0 ? -errno : take_fd(&fd);
}

/* The header that the daemon's pools and configuration ask for. */
static void write_header(struct proto_records *header, const struct core *core, uint64_t records_bytes,
                         uint64_t hours) {
    proto_records_lay_out(header, records_bytes, hours, core->n_pools);
    for (unsigned i = 0; i < core->n_pools; i++) {
        const struct pool *pool = core->pools[i];
        memcpy(header->pools[i].uuid, pool->uuid, sizeof header->pools[i].uuid);
        header->pools[i].numa_node = pool->numa_node;
        snprintf(header->pools[i].name, sizeof header->pools[i].name, "%s", pool->name);
    }
}

/* Whether the file is one of the same shape and of the same pools, so that it can be gone on with. */
static bool has_header(int fd, const struct proto_records *expected) {
    struct proto_records found;
    struct stat status;

    return fstat(fd, &status) == 0 && pread(fd, &found, sizeof found, 0) == (ssize_t)sizeof found &&
           proto_records_are_sane(&found, (uint64_t)status.st_size) &&
           found.records_count == expected->records_count && found.hours_count == expected->hours_count &&
           found.pools_count == expected->pools_count &&
           memcmp(found.pools, expected->pools, sizeof found.pools) == 0;
}

/* Makes room for the file on an empty one. Returns 0 or a negative errno. */
static int fill(int fd, const struct proto_records *header) {
    int r = posix_fallocate(fd, 0, (off_t)header->file_bytes);
    if (r != 0)
        return -r;
    return pwrite(fd, header, sizeof *header, 0) == (ssize_t)sizeof *header ? 0 : -EIO;
}

/* Opens the file, which has the header afterwards. Returns a descriptor or a negative errno. */
static int open_file(const char *path, const struct proto_records *header) {
    char old[PATH_SIZE + sizeof ".old"];
    struct stat status;

    _cleanup_(close_fdp) int fd = open_locked(path);
    if (fd < 0)
        return fd;
    if (has_header(fd, header))
        return take_fd(&fd);
    if (fstat(fd, &status) == 0 && status.st_size > 0) {
        snprintf(old, sizeof old, "%s.old", path);
        if (rename(path, old) < 0)
            return -errno;
        log_info("%s is of other pools or another size: it is %s now", path, old);
        close_fd(fd);
        fd = open_locked(path);
        if (fd < 0)
            return fd;
    }
    int r = fill(fd, header);
    if (r < 0) {
        unlink(path);
        return r;
    }
    return take_fd(&fd);
}

void record_file_open(struct record_file *file, struct core *core, const char *admin_path,
                      uint64_t records_bytes, uint64_t hours, bool goes_on) {
    struct proto_records header;
    char path[PATH_SIZE];

    *file = (struct record_file){.fd = -1};
    proto_records_path(admin_path, path, sizeof path);
    write_header(&header, core, records_bytes, hours);
    _cleanup_(close_fdp) int fd = open_file(path, &header);
    void *memory =
        fd < 0 ? MAP_FAILED
               : mmap(NULL, header.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (memory == MAP_FAILED) {
        int error = fd < 0 ? -fd : errno;
        log_warning(
            "%s: %s: nothing is recorded, and gpupoolctl events and history show nothing of this daemon",
            path, error == EWOULDBLOCK ? "another daemon writes to it" : strerror(error));
        return;
    }
    file->records = memory;
    file->fd = take_fd(&fd);
    file->records->daemon_pid = (uint32_t)getpid();
    recorder_open(core, file->records);
    record_file_set_clock(core);
    record(core, &(struct recorded){.kind = goes_on ? PROTO_RECORD_GO_ON : PROTO_RECORD_START,
                                    .value = (uint64_t)getpid()});
    log_info("%s has room for %" PRIu64 " records and %" PRIu64 " hours", path, header.records_count, hours);
}

void record_file_set_clock(struct core *core) {
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    recorder_set_clock(core, clock_now_ns(), (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec);
}

void record_file_close(struct record_file *file) {
    if (file->records != NULL) {
        munmap(file->records, file->records->file_bytes);
        file->records = NULL;
        file->fd = close_fd(file->fd);
    }
}
