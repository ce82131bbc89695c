/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/keeper/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"

/* PID:NUMBER. The process keeps its number when it executes a program; a child has another one. */
#define VARIABLE "GPUPOOL_KEEPER_STATE"

enum kind {
    TEXT_PROGRAM,
    TEXT_INBOX,
    BOOLEAN,
    NUMBER,
    FD,
    TIME,
};

/* The lines "NAME VALUE". */
static const struct {
    const char *name;
    enum kind kind;
    size_t offset;
} rows[] = {
    {"program", TEXT_PROGRAM, offsetof(struct keeper_state, program)},
    {"inbox", FD, offsetof(struct keeper_state, inbox.fd)},
    {"inbox_path", TEXT_INBOX, offsetof(struct keeper_state, inbox.path)},
    {"child", NUMBER, offsetof(struct keeper_state, child)},
    {"adopted", NUMBER, offsetof(struct keeper_state, adopted)},
    {"adopted_fd", FD, offsetof(struct keeper_state, adopted_fd)},
    {"told_status", NUMBER, offsetof(struct keeper_state, told_status)},
    {"is_ready", BOOLEAN, offsetof(struct keeper_state, is_ready)},
    {"is_stopping", BOOLEAN, offsetof(struct keeper_state, is_stopping)},
    {"must_reload", BOOLEAN, offsetof(struct keeper_state, must_reload)},
    {"starts", NUMBER, offsetof(struct keeper_state, starts)},
    {"deaths", NUMBER, offsetof(struct keeper_state, deaths)},
    {"pauses", NUMBER, offsetof(struct keeper_state, pauses)},
    {"ready_ns", TIME, offsetof(struct keeper_state, ready_ns)},
    {"next_start_ns", TIME, offsetof(struct keeper_state, next_start_ns)},
    {"status", NUMBER, offsetof(struct keeper_state, status)},
    {"ready_fd", FD, offsetof(struct keeper_state, ready_fd)},
};
#define KEPT_ROW "kept " /* "kept NUMBER NAME" */

_Static_assert(sizeof(pid_t) == sizeof(int) && sizeof(unsigned) == sizeof(int), "NUMBER is an int");

static void write_row(FILE *file, const struct keeper_state *state, size_t i) {
    const void *member = (const char *)state + rows[i].offset;

    fprintf(file, "%s ", rows[i].name);
    if (rows[i].kind == TEXT_PROGRAM || rows[i].kind == TEXT_INBOX)
        fprintf(file, "%s\n", (const char *)member);
    else if (rows[i].kind == BOOLEAN)
        fprintf(file, "%d\n", *(const bool *)member);
    else if (rows[i].kind == TIME)
        fprintf(file, "%" PRIu64 "\n", *(const uint64_t *)member);
    else
        fprintf(file, "%d\n", *(const int *)member);
}

/* Sets a member. Returns false where a value is not what it should be. */
static bool read_row(struct keeper_state *state, size_t i, const char *value) {
    void *member = (char *)state + rows[i].offset;
    size_t size = rows[i].kind == TEXT_PROGRAM ? sizeof state->program : sizeof state->inbox.path;
    char *end;

    if (rows[i].kind == TEXT_PROGRAM || rows[i].kind == TEXT_INBOX)
        return snprintf(member, size, "%s", value) < (int)size;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0')
        return false;
    if (rows[i].kind == BOOLEAN)
        *(bool *)member = number != 0;
    else if (rows[i].kind == TIME)
        *(uint64_t *)member = (uint64_t)number;
    else if (number < INT_MIN || number > INT_MAX)
        return false;
    else
        *(int *)member = (int)number;
    return true;
}

/* Reads "NUMBER NAME". */
static bool read_kept(struct keeper_state *state, const char *value) {
    char *name;
    long fd = strtol(value, &name, 10);

    if (fd < KEPT_FIRST_FD || fd > INT_MAX || *name != ' ' || fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0)
        return false;
    return kept_add(&state->kept, (int)fd, name + 1) == 1;
}

static bool read_line(struct keeper_state *state, char *line) {
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, KEPT_ROW, strlen(KEPT_ROW)) == 0)
        return read_kept(state, line + strlen(KEPT_ROW));
    char *value = strchr(line, ' ');
    if (value == NULL)
        return false;
    *value++ = '\0';
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++)
        if (strcmp(rows[i].name, line) == 0)
            return read_row(state, i, value);
    return true; /* a newer keeper's */
}

/* Has the next program inherit what the state names, or not. */
static void set_inherited(const struct keeper_state *state, bool is_inherited) {
    int flags = is_inherited ? 0 : FD_CLOEXEC;

    for (size_t i = 0; i < state->kept.count; i++)
        fcntl(state->kept.all[i].fd, F_SETFD, flags);
    fcntl(state->inbox.fd, F_SETFD, flags);
    if (state->ready_fd >= 0)
        fcntl(state->ready_fd, F_SETFD, flags);
    if (state->adopted_fd >= 0)
        fcntl(state->adopted_fd, F_SETFD, flags);
}

int state_pass(const struct keeper_state *state) {
    char value[64];
    bool is_written = true;

    int fd = memfd_create("gpupool-keeper", 0);
    if (fd < 0)
        return -errno;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, KEPT_FIRST_FD);
    FILE *file = copy < 0 ? NULL : fdopen(copy, "w");
    if (file == NULL) {
        int r = -errno;
        close_fd(copy);
        close_fd(fd);
        return r;
    }
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++)
        write_row(file, state, i);
    for (size_t i = 0; i < state->kept.count; i++)
        fprintf(file, KEPT_ROW "%d %s\n", state->kept.all[i].fd, state->kept.all[i].name);
    is_written = ferror(file) == 0;
    is_written = fclose(file) == 0 && is_written;
    snprintf(value, sizeof value, "%d:%d", (int)getpid(), fd);
    if (!is_written || lseek(fd, 0, SEEK_SET) < 0 || setenv(VARIABLE, value, 1) < 0) {
        close_fd(fd);
        return -ENOMEM;
    }
    set_inherited(state, true);
    return fd;
}

void state_pass_not(const struct keeper_state *state, int fd) {
    set_inherited(state, false);
    unsetenv(VARIABLE);
    close_fd(fd);
}

int state_take(struct keeper_state *state) {
    const char *value = getenv(VARIABLE);
    _cleanup_(freep) char *line = NULL;
    size_t size = 0;
    int pid, fd, r = 1;

    bool is_own = value != NULL && sscanf(value, "%d:%d", &pid, &fd) == 2 && pid == (int)getpid();
    unsetenv(VARIABLE);
    if (!is_own)
        return 0;
    _cleanup_(fclosep) FILE *file = fdopen(fd, "r");
    if (file == NULL)
        return -errno;
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    while (getline(&line, &size, file) >= 0)
        if (!read_line(state, line))
            r = -EINVAL;
    set_inherited(state, false);
    return r;
}
