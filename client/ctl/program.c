/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"

#define INTERPRETERS_MAX 4u   /* as the kernel: a script's interpreter may be a script */
#define LINE_SIZE        256u /* the kernel's BINPRM_BUF_SIZE: what it reads of a script's first line */

/* --- finding --- */

/* 0, -EACCES for what is there and cannot be executed, -ENOENT. */
static int look(const char *path) {
    struct stat status;

    if (stat(path, &status) < 0)
        return errno == EACCES ? -EACCES : -ENOENT;
    return S_ISREG(status.st_mode) && access(path, X_OK) == 0 ? 0 : -EACCES;
}

int program_find(const char *name, char *ret_path, size_t size) {
    const char *list = getenv("PATH");
    int result = -ENOENT;

    if (name[0] == '\0')
        return -ENOENT;
    if (strchr(name, '/') != NULL)
        return (size_t)snprintf(ret_path, size, "%s", name) < size ? look(name) : -ENOENT;
    if (list == NULL)
        list = "/bin:/usr/bin"; /* as execvp() */
    for (const char *entry = list;; entry++) {
        size_t length = strcspn(entry, ":");
        int wanted = snprintf(ret_path, size, "%.*s%s%s", (int)length, entry, length > 0 ? "/" : "", name);
        int r = wanted >= 0 && (size_t)wanted < size ? look(ret_path) : -ENOENT;
        if (r == 0)
            return 0;
        if (r == -EACCES)
            result = -EACCES;
        entry += length;
        if (*entry == '\0')
            return result;
    }
}

/* --- ELF --- */

struct file {
    const unsigned char *bytes;
    size_t size;
};

static void file_close(struct file *file) {
    if (file->bytes != NULL)
        munmap((void *)file->bytes, file->size);
}

static int file_open(struct file *file, const char *path, struct stat *ret_status) {
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, ret_status) < 0)
        return -errno;
    if (ret_status->st_size <= 0)
        return -ENOEXEC;
    file->size = (size_t)ret_status->st_size;
    void *bytes = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        return -errno;
    file->bytes = bytes;
    return 0;
}

/* A range of the file; NULL where it is not all there. */
static const void *range(const struct file *file, uint64_t offset, uint64_t size_bytes) {
    return offset <= file->size && size_bytes <= file->size - offset ? file->bytes + offset : NULL;
}

static bool program_header(const struct file *file, unsigned index, ElfW(Phdr) * ret_header) {
    ElfW(Ehdr) elf;

    memcpy(&elf, file->bytes, sizeof elf);
    if (index >= elf.e_phnum || elf.e_phentsize != sizeof *ret_header)
        return false;
    const void *found = range(file, elf.e_phoff + (uint64_t)index * sizeof *ret_header, sizeof *ret_header);
    if (found == NULL)
        return false;
    memcpy(ret_header, found, sizeof *ret_header);
    return true;
}

static enum program_kind judge_elf(const struct file *file) {
    ElfW(Phdr) header;

    if (file->size < sizeof(ElfW(Ehdr)) ||
        file->bytes[EI_CLASS] != (__ELF_NATIVE_CLASS == 64 ? ELFCLASS64 : ELFCLASS32))
        return PROGRAM_SERVED;
    for (unsigned i = 0; program_header(file, i, &header); i++)
        if (header.p_type == PT_INTERP)
            return PROGRAM_SERVED;
    return PROGRAM_STATIC;
}

/* --- judging --- */

/* The interpreter in a script's first line: "#!/usr/bin/env -S python3 -u" is python3. False: it names none.
 */
static bool interpreter_of(const struct file *file, char *ret_path, size_t size) {
    char line[LINE_SIZE], *rest = line, *word;
    size_t length = file->size - 2 < sizeof line - 1 ? file->size - 2 : sizeof line - 1;

    memcpy(line, file->bytes + 2, length);
    line[length] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    word = strtok_r(rest, " \t", &rest);
    if (word == NULL)
        return false;
    const char *slash = strrchr(word, '/');
    if (slash == NULL || strcmp(slash, "/env") != 0)
        return (size_t)snprintf(ret_path, size, "%s", word) < size;
    do
        word = strtok_r(NULL, " \t", &rest);
    while (word != NULL && (word[0] == '-' || strchr(word, '=') != NULL));
    return word != NULL && program_find(word, ret_path, size) == 0;
}

static bool is_privileged(const char *path, const struct stat *status) {
    return (status->st_mode & S_ISUID) != 0 ||
           (status->st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) ||
           getxattr(path, "security.capability", NULL, 0) > 0;
}

enum program_kind program_judge(char *path, size_t size) {
    for (unsigned i = 0; i <= INTERPRETERS_MAX; i++) {
        _cleanup_(file_close) struct file file = {0};
        struct stat status;

        if (file_open(&file, path, &status) < 0)
            return PROGRAM_SERVED;
        if (file.size > 2 && memcmp(file.bytes, "#!", 2) == 0) {
            if (!interpreter_of(&file, path, size))
                return PROGRAM_SERVED;
            continue;
        }
        if (is_privileged(path, &status))
            return PROGRAM_PRIVILEGED;
        return file.size > SELFMAG && memcmp(file.bytes, ELFMAG, SELFMAG) == 0 ? judge_elf(&file)
                                                                               : PROGRAM_SERVED;
    }
    return PROGRAM_SERVED;
}
