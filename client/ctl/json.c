/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/utf8.h"

/* Up to here a double has every integer: 2^53. */
#define INTEGER_MAX 9007199254740992.0

/* How messages call the whole reply. */
#define ROOT "reply"

/* Where the reader is. The first mistake is kept in r and reason; after it nothing more is read. */
struct reader {
    int r;
    char *reason;
    char where[128]; /* "pools[3]"; empty: the whole reply */
};

/* The members that a reply must have, by the name of the command, and those of the objects in it. Each is a
 * key and its type: # an integer from 0 to 2^53, $ a string, ! true or false, % a number from 0 to 1, [name]
 * an array of such objects, [$] an array of strings, [] another array, {name} such an object. After it, ?
 * allows null. reply_types.py makes the rows from docs/schema. */
static const struct object {
    const char *name, *members;
} objects[] = {
#include "reply_types.h"
};

__attribute__((format(printf, 2, 3))) static void reader_fail(struct reader *reader, const char *format,
                                                              ...) {
    va_list arguments;

    if (reader->r < 0)
        return;
    va_start(arguments, format);
    reader->r = vasprintf(&reader->reason, format, arguments) < 0 ? -ENOMEM : -EBADMSG;
    va_end(arguments);
    if (reader->r == -ENOMEM)
        reader->reason = NULL; /* vasprintf() leaves it undefined */
}

/* JSON forbids control characters and bytes that are not UTF-8; cJSON lets them through. */
static void check_characters(struct reader *reader, const char *line, size_t length) {
    for (size_t i = 0, bytes; i < length; i += bytes) {
        uint32_t character;
        bytes = utf8_decode(line + i, length - i, &character);
        if (bytes == 0 || character < 0x20) {
            reader_fail(reader, "byte %zu (0x%02x) is %s", i, (unsigned char)line[i],
                        bytes == 0 ? "not UTF-8" : "a control character");
            return;
        }
    }
}

static void check_members(struct reader *reader, const cJSON *json, const char *type);

/* Checks an object, or where the type is "$" a string, at a key, or at an index below it (SIZE_MAX: none). */
static void check_object(struct reader *reader, const cJSON *json, const char *key, size_t index,
                         const char *type) {
    size_t length = strlen(reader->where);
    char *end = reader->where + length;

    snprintf(end, sizeof reader->where - length, index == SIZE_MAX ? "%s%s" : "%s%s[%zu]",
             length > 0 ? "." : "", key, index);
    if (strcmp(type, "$") == 0 && !cJSON_IsString(json))
        reader_fail(reader, "%s is not a string", reader->where);
    else if (strcmp(type, "$") != 0 && !cJSON_IsObject(json))
        reader_fail(reader, "%s is not an object", reader->where);
    else
        check_members(reader, json, type);
    *end = '\0';
}

/* Checks a member's type. Returns NULL, or the name of the type that it should have. */
static const char *check_type(struct reader *reader, const cJSON *member, const char *key, char kind,
                              const char *type) {
    double value = member->valuedouble;
    size_t i = 0;

    switch (kind) {
    case '#':
        return cJSON_IsNumber(member) && value >= 0 && value <= INTEGER_MAX &&
                       value == (double)(uint64_t)value
                   ? NULL
                   : "an integer from 0 to 2^53";
    case '$':
        return cJSON_IsString(member) ? NULL : "a string";
    case '!':
        return cJSON_IsBool(member) ? NULL : "true or false";
    case '%':
        return cJSON_IsNumber(member) && value >= 0 && value <= 1 ? NULL : "a number from 0 to 1";
    case '{':
        check_object(reader, member, key, SIZE_MAX, type);
        return NULL;
    default:
        if (!cJSON_IsArray(member))
            return "an array";
        if (*type == '\0')
            return NULL;
        for (const cJSON *element = member->child; element != NULL && reader->r == 0; element = element->next)
            check_object(reader, element, key, i++, type);
        return NULL;
    }
}

/* Checks the members that an object of a type must have; "$" is none. */
static void check_members(struct reader *reader, const cJSON *json, const char *type) {
    const char *where = reader->where[0] != '\0' ? reader->where : ROOT, *members = "", *wrong = NULL;
    char key[32], inner[32], kind;

    for (size_t i = 0; i < sizeof objects / sizeof *objects; i++)
        if (strcmp(objects[i].name, type) == 0)
            members = objects[i].members;
    while (*members != '\0' && reader->r == 0) {
        size_t length = strcspn(members, "#$!%[{");
        snprintf(key, sizeof key, "%.*s", (int)length, members);
        kind = members[length];
        members += length + 1;
        if (kind == '[' || kind == '{') {
            length = strcspn(members, "]}");
            snprintf(inner, sizeof inner, "%.*s", (int)length, members);
            members += length + 1;
        }
        bool nullable = *members == '?';
        members += nullable;
        members += *members == ' ';
        const cJSON *member = cJSON_GetObjectItemCaseSensitive(json, key);
        if (member == NULL)
            reader_fail(reader, "%s.%s is missing", where, key);
        else if (!(nullable && cJSON_IsNull(member)))
            wrong = check_type(reader, member, key, kind, inner);
        if (wrong != NULL)
            reader_fail(reader, "%s.%s is not %s", where, key, wrong);
    }
}

int reply_read(const char *line, size_t length, const char *command, struct reply **ret_reply,
               char **ret_reason) {
    _cleanup_(reply_freep) struct reply *reply = calloc(1, sizeof *reply);
    struct reader reader = {0};

    if (reply == NULL)
        return -ENOMEM;
    check_characters(&reader, line, length);
    if (reader.r == 0) {
        /* The NUL counts: with it cJSON refuses what follows the value. */
        reply->root = cJSON_ParseWithLengthOpts(line, length + 1, NULL, true);
        const cJSON *error = cJSON_GetObjectItemCaseSensitive(reply->root, "error");
        if (reply->root == NULL)
            reader_fail(&reader, "it is not JSON");
        else if (!cJSON_IsObject(reply->root))
            reader_fail(&reader, "%s is not an object", ROOT);
        else
            check_members(&reader, reply->root, error != NULL ? "error" : command);
        if (error != NULL && reader.r == 0) {
            reply->error_code = reply_text(error, "code");
            reply->error_message = reply_text(error, "message");
        }
    }
    if (reader.r < 0) {
        if (reader.r == -EBADMSG)
            *ret_reason = reader.reason;
        else
            free(reader.reason);
        return reader.r;
    }
    *ret_reply = take_ptr(&reply);
    return 0;
}

struct reply *reply_free(struct reply *reply) {
    if (reply != NULL)
        cJSON_Delete(reply->root);
    free(reply);
    return NULL;
}

/* The member at a key, or at keys with dots between them. */
static const cJSON *find(const cJSON *object, const char *key) {
    char first[32];
    size_t length = strcspn(key, ".");

    if (key[length] == '\0')
        return cJSON_GetObjectItemCaseSensitive(object, key);
    snprintf(first, sizeof first, "%.*s", (int)length, key);
    return find(cJSON_GetObjectItemCaseSensitive(object, first), key + length + 1);
}

uint64_t reply_count(const cJSON *object, const char *key) {
    const cJSON *member = find(object, key);
    return cJSON_IsNumber(member) ? (uint64_t)member->valuedouble : REPLY_NULL;
}

double reply_ratio(const cJSON *object, const char *key) {
    const cJSON *member = find(object, key);
    return cJSON_IsNumber(member) ? member->valuedouble : REPLY_NULL_RATIO;
}

bool reply_flag(const cJSON *object, const char *key) {
    return cJSON_IsTrue(find(object, key));
}

const char *reply_text(const cJSON *object, const char *key) {
    return cJSON_GetStringValue(find(object, key));
}

const cJSON *reply_first(const cJSON *object, const char *key) {
    const cJSON *array = find(object, key);
    return array != NULL ? array->child : NULL;
}

const cJSON *reply_next(const cJSON *element) {
    return element->next;
}

const cJSON *reply_object(const cJSON *object, const char *key) {
    return find(object, key);
}

uint64_t reply_item(const cJSON *array, unsigned place) {
    const cJSON *item = array->child;

    while (item != NULL && place-- > 0)
        item = item->next;
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= INTEGER_MAX
               ? (uint64_t)item->valuedouble
               : REPLY_NULL;
}

const char *reply_string(const cJSON *element) {
    return cJSON_GetStringValue(element);
}

const char *reply_key(const cJSON *member) {
    return member->string;
}

/* --- requests --- */

cJSON *json_request_new(const char *command) {
    cJSON *request = cJSON_CreateObject();
    cJSON_AddStringToObject(request, "command", command);
    return request;
}

/* A member that is an array or object; made where it is not there. */
static cJSON *get_member(cJSON *request, const char *key, cJSON *(*make)(void)) {
    cJSON *member = cJSON_GetObjectItemCaseSensitive(request, key);

    if (member == NULL) {
        member = make();
        cJSON_AddItemToObject(request, key, member);
    }
    return member;
}

void json_request_add_text(cJSON *request, const char *object, const char *key, const char *text) {
    cJSON_AddStringToObject(object == NULL ? request : get_member(request, object, cJSON_CreateObject), key,
                            text);
}

void json_request_add_count(cJSON *request, const char *key, uint64_t number) {
    cJSON_AddNumberToObject(request, key, (double)number);
}

void json_request_add_flag(cJSON *request, const char *key, bool flag) {
    cJSON_AddBoolToObject(request, key, flag);
}

void json_request_add_to_array(cJSON *request, const char *array, uint64_t number) {
    cJSON_AddItemToArray(get_member(request, array, cJSON_CreateArray), cJSON_CreateNumber((double)number));
}

char *json_request_line(cJSON *request) {
    char *line = cJSON_PrintUnformatted(request);
    cJSON_Delete(request);
    return line;
}
