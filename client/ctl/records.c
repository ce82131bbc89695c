/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/records.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/ctl/command_line.h"
#include "client/ctl/data_socket.h"
#include "client/ctl/record_names.h"
#include "client/ctl/text.h"
#include "client/ctl/user.h"

static char path_buffer[ADDRESS_PATH_SIZE]; /* of the one file that a command reads */

/* The path of the file beside an admin socket. */
static const char *beside(const char *socket) {
    return proto_records_path(socket, path_buffer, sizeof path_buffer);
}

/* The file of the daemon that served a data socket and answers no more: beside that, by the names that admin
 * sockets have there. Returns whether there is one. */
static bool find_beside_data(const char *data) {
    const char *slash = strrchr(data, '/');
    size_t folder = slash != NULL ? (size_t)(slash - data) : 0, length = strlen(data);
    char admin[ADDRESS_PATH_SIZE];

    snprintf(admin, sizeof admin, "%.*s%s", (int)folder, data, strrchr(ADMIN_SOCKET_DEFAULT, '/'));
    if (access(beside(admin), F_OK) == 0)
        return true;
    if (length > 5 && strcmp(data + length - 5, ".sock") == 0)
        length -= 5;
    snprintf(admin, sizeof admin, "%.*s-admin.sock", (int)length, data);
    return access(beside(admin), F_OK) == 0;
}

/* The admin socket of the daemon that serves a data socket. NULL: none answers. */
static const char *find_admin_of(const char *data, uint64_t timeout_ns) {
    static struct proto_hello_reply reply;
    char text[PROTO_TEXT_MAX + 1];

    if (data_greet(data, clock_deadline_ns(clock_now_ns(), timeout_ns), &reply, text) == 0 &&
        reply.admin_path[0] != '\0')
        return reply.admin_path;
    return NULL;
}

static const char *find_path(const struct options *options) {
    const char *admin =
        options->admin_socket != NULL ? options->admin_socket : getenv("GPUPOOL_ADMIN_SOCKET");
    bool is_private;

    if (options->records != NULL)
        return options->records;
    if (admin != NULL && admin[0] != '\0')
        return beside(admin);
    const char *data = data_path_of_environment(&is_private);
    const char *told = data == NULL ? NULL : find_admin_of(data, options->timeout_ns);
    bool is_service = data == NULL || strcmp(data, DATA_SOCKET_DEFAULT) == 0;
    if ((told != NULL && access(beside(told), F_OK) == 0) || (data != NULL && find_beside_data(data)) ||
        !is_service)
        return path_buffer; /* of another daemon than the service nothing else is read */
    return beside(ADMIN_SOCKET_DEFAULT);
}

/* Maps a file. Returns 0; -EBADMSG: it is no file of records, or of another version; or a negative errno. */
static int map(struct records *records, const char *path) {
    struct stat status;

    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &status) < 0)
        return -errno;
    if (!S_ISREG(status.st_mode) || (uint64_t)status.st_size < PROTO_RECORDS_PAGE)
        return -EBADMSG;
    void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return -errno;
    *records = (struct records){
        .file = memory, .file_bytes = (uint64_t)status.st_size, .inode = status.st_ino, .path = path};
    if (proto_records_are_sane(records->file, records->file_bytes))
        return 0;
    records_close(records);
    return -EBADMSG;
}

bool records_try(struct records *records, const struct options *options) {
    return map(records, find_path(options)) == 0;
}

int records_open(struct records *records, const struct options *options, int code) {
    const char *path = find_path(options);

    int r = map(records, path);
    if (r == 0)
        return 0;
    if (r == -EACCES)
        return complain(code, "%s: %s: the records are for root and the daemon's user", path, strerror(-r));
    if (r == -EBADMSG)
        return complain(
            code,
            "%s is no file of records that this version knows: are daemon and gpupoolctl of the same "
            "version?",
            path);
    return complain(
        code,
        "%s: %s: a daemon writes its records beside its admin socket; name that with --admin-socket, or "
        "the file with --records",
        path, strerror(-r));
}

void records_close(struct records *records) {
    munmap(records->file, records->file_bytes);
    records->file = NULL;
}

uint64_t records_first(const struct records *records) {
    uint64_t next = atomic_load(&records->file->next), count = records->file->records_count;
    return next > count ? next - count : 1;
}

bool records_are_replaced(const struct records *records) {
    struct stat status;
    return stat(records->path, &status) == 0 && status.st_ino != records->inode;
}

/* Names are cut in the records. */
static bool is_of_scope(const struct record_names *names, const struct proto_record *record,
                        const char *scope) {
    char text[RECORD_SCOPE_SIZE];

    return record->scope != 0 &&
           strncmp(record_names_scope(names, record->scope, text), scope, PROTO_RECORD_NAME_SIZE - 1) == 0;
}

bool records_pass(const struct records_filter *filter, const struct record_names *names,
                  const struct proto_record *record) {
    return record->time_ns >= filter->since_ns &&
           (filter->until_ns == 0 || record->time_ns < filter->until_ns) &&
           (filter->pool == 0 || record->pool == filter->pool) &&
           (filter->pid == 0 || record->pid == filter->pid) &&
           (filter->uid == USER_NONE || (record->session != 0 && record->uid == filter->uid)) &&
           (filter->scope == NULL || is_of_scope(names, record, filter->scope));
}

bool record_change(const struct proto_record *record, int64_t *ret_held, int64_t *ret_fenced) {
    int64_t bytes = (int64_t)record->bytes;

    *ret_held = *ret_fenced = 0;
    switch ((enum proto_record_kind)record->kind) {
    case PROTO_RECORD_LEASE:
    case PROTO_RECORD_ATTACH:
        *ret_held = bytes;
        return true;
    case PROTO_RECORD_RELEASE:
        *ret_held = -bytes;
        return true;
    case PROTO_RECORD_FENCE:
        *ret_fenced = bytes;
        return true;
    case PROTO_RECORD_PASS:
        *ret_held = *ret_fenced = -bytes;
        return true;
    default:
        return false;
    }
}
