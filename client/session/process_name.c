/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/process_name.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/utf8.h"
#include "proto/text.h"

#define LINE_SIZE 4096u
#define COMM_SIZE 16u /* of the kernel's name of a process, NUL included */

/* Reads the beginning of a file. Returns its length, 0 where there is none. */
static size_t read_file(const char *path, char *text, size_t size) {
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, size - 1);

    if (length < 0)
        length = 0;
    text[length] = '\0';
    return (size_t)length;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static bool is_interpreter(const char *program) {
    static const char *const names[] = {"python", "pypy", "perl", "ruby", "node",
                                        "julia",  "bash", "dash", "sh"};

    for (size_t i = 0; i < ARRAY_LENGTH(names); i++) {
        size_t length = strlen(names[i]);
        if (strncmp(program, names[i], length) == 0 &&
            program[length + strspn(program + length, "0123456789.")] == '\0')
            return true;
    }
    return false;
}

/* The word behind one of a line. NULL: there is none. */
static const char *next_word(const char *word, const char *end) {
    word += strlen(word) + 1;
    return word < end ? word : NULL;
}

const char *process_name_of(const char *line, size_t size) {
    const char *end = line + size, *word = size > 0 ? line : NULL;

    if (word == NULL || *base_name(word) == '\0')
        return NULL;
    if (!is_interpreter(base_name(word)))
        return base_name(word);
    while ((word = next_word(word, end)) != NULL && word[0] == '-') {
        if (strcmp(word, "-m") == 0)
            return next_word(word, end);
        if (strncmp(word, "-m", 2) == 0)
            return word + 2;
        if (word[1] != '-' && (word[1] == '\0' || strpbrk(word, "ce") != NULL)) /* code follows */
            return NULL;
        if (strcmp(word, "-X") == 0 || strcmp(word, "-W") == 0) /* Python's, with a value */
            word = next_word(word, end);
        if (word == NULL)
            return NULL;
    }
    return word != NULL && *base_name(word) != '\0' ? base_name(word) : NULL;
}

/* Whether the program has set the kernel's name, or its script has it. The kernel has the last part of the path
 * that was executed, which may be a link to the program: "python3" for "python3.11". line: the command line,
 * which begins with that path, as a rule. */
static bool has_set_name(const char *line) {
    char comm[COMM_SIZE + 1], path[LINE_SIZE];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);

    if (length < 0 || read_file("/proc/self/comm", comm, sizeof comm) == 0)
        return false;
    path[length] = '\0';
    comm[strcspn(comm, "\n")] = '\0';
    return strncmp(comm, base_name(path), COMM_SIZE - 1) != 0 &&
           strncmp(comm, base_name(line), COMM_SIZE - 1) != 0;
}

bool process_name(const char *wanted, struct proto_name *ret_name) {
    char line[LINE_SIZE], *name = ret_name->name;
    const char *chosen = wanted;

    if (chosen == NULL) {
        size_t size = read_file("/proc/self/cmdline", line, sizeof line);
        if (has_set_name(line) || (chosen = process_name_of(line, size)) == NULL)
            return false;
    }
    memset(ret_name, 0, sizeof *ret_name);
    memcpy(name, chosen, text_whole_characters(chosen, strnlen(chosen, sizeof ret_name->name - 1)));
    utf8_make_valid(name);
    utf8_make_plain(name, strlen(name));
    return text_is_printable(name, strlen(name)) && name[0] != '\0';
}
