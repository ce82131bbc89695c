/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration file: lines, sections and keys. A file is read to its end, whatever mistakes it has: each
 * line is told of once. inih takes a line apart; it knows no mistakes but the first one and no sections but
 * those of keys, so both are looked after here.
 */
#include <errno.h>
#include <ini.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "daemon/config/config.h"

#define BLANKS " \t\r"

/* The kinds of lines that inih is given, by what it makes of them. */
enum line_kind {
    LINE_OTHER, /* nothing: it is empty, a comment, a section, or a mistake that was told of */
    LINE_KEY,   /* a call of on_key(), unless there is no '=' */
};

struct reading {
    struct config *config;
    struct config_place place;  /* of the line that is being read */
    struct config_view section; /* that is being read */
    bool is_known;              /* there is such a section */
    bool has_key;               /* it has one */
    int section_line;           /* 0: none yet */
    char section_name[INI_MAX_LINE + 1];
    enum line_kind kind; /* of the last line; on_key() makes it LINE_OTHER */
    FILE *file;
    int read_error; /* errno, when the file could not be read to its end */
};

/* Ends what was read of a line: a line without a key is one that inih does not understand. */
static void end_line(struct reading *reading) {
    if (reading->kind == LINE_KEY)
        config_mistake(&reading->place, "this line is neither [section] nor key = value");
    reading->kind = LINE_OTHER;
}

/* A section that says nothing about one thing is a mistake. The common ones of the sample file have only
 * comments in them. */
static void end_section(struct reading *reading) {
    const struct config_view *section = &reading->section;
    struct config_place place = reading->place;

    if (!reading->is_known || reading->has_key || (section->section == NULL && section->rule == NULL))
        return;
    place.line = reading->section_line;
    config_mistake(&place, "[%s] has no key: give it one, or take it away", reading->section_name);
}

/* A section begins: text is behind the '['. */
static void begin_section(struct reading *reading, const char *text) {
    size_t length = strcspn(text, "];");

    end_section(reading);
    reading->section_line = reading->place.line;
    reading->is_known = reading->has_key = false;
    if (text[length] != ']') {
        config_mistake(&reading->place, "this line is neither [section] nor key = value: it has no ']'");
        return;
    }
    const char *rest = text + length + 1;
    rest += strspn(rest, BLANKS);
    snprintf(reading->section_name, sizeof reading->section_name, "%.*s", (int)length, text);
    reading->is_known =
        config_find_section(reading->config, reading->section_name, &reading->place, &reading->section) == 0;
    if (*rest != '\0' && *rest != ';' && *rest != '#')
        config_mistake(&reading->place, "there is '%s' behind [%s]: give it a line of its own", rest,
                       reading->section_name);
}

/* Looks at a line before inih does, which takes an indented one for more of the value before it. */
static void look_at_line(struct reading *reading, const char *line) {
    const char *text = line + strspn(line, BLANKS);

    if (*text == '\0' || *text == '#' || *text == ';')
        return;
    if (text != line)
        config_mistake(&reading->place,
                       "this line is indented: sections and keys begin at the start of a line");
    else if (*text == '[')
        begin_section(reading, text + 1);
    else
        reading->kind = LINE_KEY;
}

/* Reads a line without its newline. Returns its length, or -1 at the end of the file. A line that cannot be
 * read whole is told of, and empty. */
static int get_line(struct reading *reading, char *text, int size) {
    bool has_nul = false, is_long = false;
    int length = 0, c;

    while ((c = fgetc(reading->file)) != EOF && c != '\n') {
        has_nul |= c == '\0';
        is_long |= length == size - 1;
        if (length < size - 1)
            text[length++] = (char)c;
    }
    text[length] = '\0';
    if (ferror(reading->file))
        reading->read_error = errno;
    if (c == EOF && length == 0)
        return -1;
    const char *first = text + strspn(text, BLANKS);
    if (is_long && (*first == '#' || *first == ';') && !has_nul)
        return length; /* the rest of a comment is one, too */
    if (has_nul)
        config_mistake(&reading->place, "this line has a NUL in it");
    else if (is_long)
        config_mistake(&reading->place, "this line has more than %d characters", size - 1);
    else
        return length;
    text[0] = '\0';
    return 0;
}

/* Gives inih one line a call; it would take the rest of a line that is too long for it for a line of its own,
 * and a NUL for the end of one. A line that is told of here is empty to it. */
static char *read_line(char *text, int size, void *stream) {
    struct reading *reading = stream;

    end_line(reading);
    reading->place.line++;
    if (get_line(reading, text, size) < 0)
        return NULL;
    unsigned told = reading->place.mistakes->count;
    bool has_mark = reading->place.line == 1 && strncmp(text, "\xef\xbb\xbf", 3) == 0;
    look_at_line(reading, has_mark ? text + 3 : text);
    if (reading->place.mistakes->count > told)
        text[0] = '\0';
    return text;
}

static int on_key(void *user, const char *section, const char *key, const char *value) {
    struct reading *reading = user;
    (void)section;

    reading->kind = LINE_OTHER;
    if (reading->section_line == 0) {
        if (!reading->has_key)
            config_mistake(
                &reading->place,
                "'%s' stands before the first section: give it one, such as [daemon], in a line above", key);
    } else if (reading->is_known) {
        config_set_key(&reading->section, key, value, &reading->place);
    }
    reading->has_key = true;
    return 1;
}

int config_read_file(struct config *config, const char *path, struct config_mistakes *mistakes) {
    struct reading reading = {.config = config, .place = {.mistakes = mistakes, .path = path}};
    unsigned told = mistakes->count;

    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    if (file == NULL) {
        int r = -errno;
        config_mistake(&reading.place, "%s", strerror(-r));
        return r;
    }
    reading.file = file;
    config->has_file = true;
    int r = ini_parse_stream(read_line, &reading, on_key, &reading);
    end_section(&reading);
    reading.place.line = 0;
    if (r < 0 || reading.read_error != 0)
        config_mistake(&reading.place, "cannot be read: %s",
                       reading.read_error != 0 ? strerror(reading.read_error) : "out of memory");
    return mistakes->count > told ? -EINVAL : 0;
}
