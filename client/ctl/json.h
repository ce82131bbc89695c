/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_JSON_H
#define CLIENT_CTL_JSON_H
/*
 * The daemon's replies. A reply that was read is whole: every member that its schema (docs/schema) requires
 * is there and of its type, every integer exact. So the functions that get a member cannot fail. Members that
 * this version does not know are passed over, so that the tool can ask a newer daemon.
 *
 * json.c is the only file that includes cJSON.h: that parser lets through what is not JSON (control
 * characters, bad UTF-8), has numbers as doubles, and finds keys without regard to case unless told. json.c
 * makes up for it.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cJSON;

/* A count where the schema says null. */
#define REPLY_NULL UINT64_MAX
/* A share where the schema says null; else it is from 0 to 1. */
#define REPLY_NULL_RATIO (-1.0)

/* One reply. error_code and error_message are set when the daemon refused: then nothing else is there. */
struct reply {
    struct cJSON *root;
    const char *error_code, *error_message;
};

/* Reads a line of length bytes, which is NUL-terminated, as the reply to a command, such as "stats", or as an
 * error reply. Returns 0 and a reply that reply_free() gives back; -ENOMEM; -EBADMSG, and then
 * ret_reason says what is wrong with the line, owned by the caller. Outputs that are not named are untouched.
 */
int reply_read(const char *line, size_t length, const char *command, struct reply **ret_reply,
               char **ret_reason);

/* Accepts NULL. Returns NULL. */
struct reply *reply_free(struct reply *reply);

static inline void reply_freep(struct reply **reply) {
    reply_free(*reply);
}

/* A request that is put together. */
struct cJSON *json_request_new(const char *command);

/* Adds a text to the request, or to an object in it (NULL: the request itself), which it makes. */
void json_request_add_text(struct cJSON *request, const char *object, const char *key, const char *text);

/* Adds a number. */
void json_request_add_count(struct cJSON *request, const char *key, uint64_t number);

/* Adds a flag. Adds a number to an array in the request, which it makes. */
void json_request_add_flag(struct cJSON *request, const char *key, bool flag);
void json_request_add_to_array(struct cJSON *request, const char *array, uint64_t number);

/* Takes a request. Returns its line, owned by the caller; NULL: no memory. */
char *json_request_line(struct cJSON *request);

/* Members of an object, by a key or by keys with dots between them ("histograms.growth_ns.p50"). Texts are
 * borrowed from the reply, NULL where the reply has null. */
uint64_t reply_count(const struct cJSON *object, const char *key);
double reply_ratio(const struct cJSON *object, const char *key);
bool reply_flag(const struct cJSON *object, const char *key);
const char *reply_text(const struct cJSON *object, const char *key);

/* The first element of an array, or member of an object, and the one after it; NULL: there is none. */
const struct cJSON *reply_first(const struct cJSON *object, const char *key);
const struct cJSON *reply_next(const struct cJSON *element);

/* The key of an element that is a member of an object. */
const char *reply_key(const struct cJSON *member);

/* An object that is a member, borrowed. */
const struct cJSON *reply_object(const struct cJSON *object, const char *key);

/* The integer at a place of an element that is an array; REPLY_NULL where there is null or nothing. */
uint64_t reply_item(const struct cJSON *array, unsigned place);

/* An element that is a string. */
const char *reply_string(const struct cJSON *element);

#define reply_each(element, object, key)                                                                     \
    for (const struct cJSON *element = reply_first(object, key); element != NULL;                            \
         element = reply_next(element))

#endif
