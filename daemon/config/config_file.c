/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration file: lines, sections and keys. config.c gives them their meaning. */
#include <errno.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/config/config.h"

/* A key that the file has set. */
struct seen {
    struct list link;
    int line;
    char name[]; /* section, newline, key */
};

struct reading {
    struct config *config;
    struct list seen;                     /* struct seen.link */
    char section[CONFIG_SECTION_MAX + 1]; /* the one that is being read */
    int section_line;                     /* 0: none yet */
    bool has_key;                         /* it has one */
    FILE *file;
    int lines;      /* read so far */
    int error_line; /* of the complaint in error; 0: none */
    int read_error; /* errno, when the file could not be read to its end */
    char *error;
    size_t error_size;
};

/* The first complaint stays. */
__attribute__((format(printf, 3, 4))) static void complain_at(struct reading *reading, int line,
                                                              const char *format, ...) {
    va_list arguments;

    if (reading->error_line != 0)
        return;
    va_start(arguments, format);
    vsnprintf(reading->error, reading->error_size, format, arguments);
    va_end(arguments);
    reading->error_line = line;
}

/* A section that says nothing about one thing is a mistake, and so is an unknown one: inih tells of keys
 * only. Those of the sample file have only comments in them. */
static void end_section(struct reading *reading) {
    static const char *const common[] = {"daemon", "device", "host", "quota"};
    const char *name = reading->section;

    if (reading->section_line == 0 || reading->has_key || reading->error_line != 0)
        return;
    for (unsigned i = 0; i < sizeof common / sizeof *common; i++)
        if (strcmp(name, common[i]) == 0)
            return;
    if (strncmp(name, "device ", 7) == 0 || strncmp(name, "host ", 5) == 0 || strncmp(name, "quota ", 6) == 0)
        complain_at(reading, reading->section_line, "[%s] has no key: give it one, or take it away", name);
    else if (config_set(reading->config, name, "", "", reading->error, reading->error_size) < 0)
        reading->error_line = reading->section_line;
}

/* Looks at a line before inih does, which takes an indented one for more of the value before it. */
static void look_at_line(struct reading *reading, const char *line) {
    const char *text = line + strspn(line, " \t\r");

    if (*text == '\0' || *text == '#' || *text == ';')
        return;
    if (text != line) {
        complain_at(reading, reading->lines,
                    "this line is indented: sections and keys begin at the start of a line");
    } else if (*text == '[') {
        end_section(reading);
        snprintf(reading->section, sizeof reading->section, "%.*s", (int)strcspn(text + 1, "]"), text + 1);
        reading->section_line = reading->lines;
        reading->has_key = false;
    }
}

/* Notes that the file has set a key. Lists add up; any other key is set once. */
static int note_key(struct reading *reading, const char *section, const char *key) {
    size_t size = strlen(section) + strlen(key) + 2;

    reading->has_key = true;
    if (strcmp(key, "allow") == 0)
        return 0;
    struct seen *seen = malloc(sizeof *seen + size);
    if (seen == NULL) {
        complain_at(reading, reading->lines, "out of memory");
        return -ENOMEM;
    }
    seen->line = reading->lines;
    snprintf(seen->name, size, "%s\n%s", section, key);
    list_for_each_entry(const struct seen, other, &reading->seen, link) {
        if (strcmp(other->name, seen->name) != 0)
            continue;
        complain_at(reading, reading->lines, "'%s' was given in [%s] before, in line %d", key, section,
                    other->line);
        free(seen);
        return -EINVAL;
    }
    list_append(&reading->seen, &seen->link);
    return 0;
}

/* Gives inih one line a call, which is what it counts; it would take the rest of a line that is too long for
 * it for a line of its own, and a NUL for the end of one. After a mistake there is no more to read. */
static char *read_line(char *text, int size, void *stream) {
    struct reading *reading = stream;
    int length = 0, c;

    if (reading->error_line != 0)
        return NULL;
    reading->lines++;
    while ((c = fgetc(reading->file)) != EOF && c != '\n') {
        if (c == '\0')
            complain_at(reading, reading->lines, "this line has a NUL in it");
        if (length < size - 1) {
            text[length++] = (char)c;
            continue;
        }
        text[length] = '\0';
        char first = text[strspn(text, " \t")];
        bool is_comment = first == '#' || first == ';';
        if (!is_comment)
            complain_at(reading, reading->lines, "this line has more than %d characters", size - 1);
    }
    if (ferror(reading->file))
        reading->read_error = errno;
    text[length] = '\0';
    if (c != EOF || length > 0)
        look_at_line(reading, reading->lines == 1 && strncmp(text, "\xef\xbb\xbf", 3) == 0 ? text + 3 : text);
    if (reading->error_line != 0 || (c == EOF && length == 0))
        return NULL;
    return text;
}

static int on_key(void *user, const char *section, const char *key, const char *value) {
    struct reading *reading = user;
    if (note_key(reading, section, key) == 0 &&
        config_set(reading->config, section, key, value, reading->error, reading->error_size) == 0)
        return 1;
    reading->error_line = reading->lines;
    return 0;
}

int config_read_file(struct config *config, const char *path, char *error, size_t error_size) {
    struct reading reading = {.config = config, .error = error, .error_size = error_size};
    char complaint[512];

    error[0] = '\0';
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    if (file == NULL) {
        int r = -errno;
        snprintf(error, error_size, "%s: %s", path, strerror(-r));
        return r;
    }
    reading.file = file;
    list_init(&reading.seen);
    int line = ini_parse_stream(read_line, &reading, on_key, &reading);
    end_section(&reading);
    list_for_each_entry_safe(struct seen, seen, &reading.seen, link) {
        free(seen);
    }
    if (line < 0 || reading.read_error != 0) {
        snprintf(error, error_size, "%s: cannot be read: %s", path,
                 reading.read_error != 0 ? strerror(reading.read_error) : "out of memory");
        return -EINVAL;
    }
    if (line == 0 && reading.error_line == 0)
        return 0;
    /* inih goes on after a line that it does not understand: the first mistake is what counts */
    bool is_ours = reading.error_line != 0 && (line == 0 || reading.error_line <= line);
    snprintf(complaint, sizeof complaint, "%s",
             is_ours ? error : "this line is neither [section] nor key = value");
    snprintf(error, error_size, "%s:%d: %s", path, is_ours ? reading.error_line : line, complaint);
    return -EINVAL;
}
