/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "proto/proto.h"

/* Length in bytes of the character at text, of which size bytes may be read: 1…4. 0: the bytes are not
 * well-formed UTF-8 (base/utf8.h), or the character is a control character. */
static size_t character_length(const char *text, size_t size) {
    uint32_t character = 0;
    size_t length = utf8_decode(text, size, &character);
    bool is_control = character < 0x20 || (character >= 0x7f && character <= 0x9f);
    return is_control ? 0 : length;
}

bool text_is_printable(const char *text, size_t size) {
    while (size > 0) {
        size_t length = character_length(text, size);
        if (length == 0)
            return false;
        text += length;
        size -= length;
    }
    return true;
}

bool text_is_filled_up(const char *text, size_t size) {
    size_t length = strnlen(text, size);

    for (size_t i = length; i < size; i++)
        if (text[i] != '\0')
            return false;
    return length > 0 && length < size;
}

const char *proto_error_text(unsigned error) {
    static const char *const texts[] = {
        [PROTO_E_INVALID] = "an argument is out of its range",
        [PROTO_E_VERSION] = "the two sides have no protocol version in common",
        [PROTO_E_NO_POOL] = "there is no pool with this id",
        [PROTO_E_TOO_LARGE] = "larger than the pool may ever be",
        [PROTO_E_EXHAUSTED] = "the pool has no room, and the deadline passed",
        [PROTO_E_STALE] = "no such lease in this session, or its generation has passed",
        [PROTO_E_NO_TOKEN] = "nothing is shared under this token, or not with this user",
        [PROTO_E_SHARED] = "a block that others hold too cannot be given back in parts, split or merged",
        [PROTO_E_LIMIT] = "the session or the tenant has as many as it may",
        [PROTO_E_DRIVER] = "the driver or the kernel refused",
        [PROTO_E_SHUTDOWN] = "the daemon is stopping",
        [PROTO_E_NO_MEMORY] = "the daemon has no memory left for its bookkeeping",
        [PROTO_E_CANCELLED] = "the request was cancelled while it waited",
        [PROTO_E_NO_NAME] = "nothing is published under this name",
    };
    _Static_assert(sizeof texts / sizeof *texts == PROTO_E_MAX + 1, "a text for each error");
    return error != 0 && error <= PROTO_E_MAX ? texts[error] : "unknown error";
}

size_t text_whole_characters(const char *text, size_t length) {
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        uint8_t c = (uint8_t)text[length - back];
        if (c < 0x80)
            break;
        if (c < 0xc0) /* in the middle of a character: its first byte lies further down */
            continue;
        size_t whole = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
        return whole > back ? length - back : length;
    }
    return length;
}

void proto_failure_set(struct proto_failure *failure, enum proto_error error, const char *format, ...) {
    va_list arguments;

    va_start(arguments, format);
    int printed = vsnprintf(failure->text, sizeof failure->text, format, arguments);
    va_end(arguments);

    size_t length = printed < 0 ? 0 : (size_t)printed;
    if (length > PROTO_TEXT_MAX)
        length = text_whole_characters(failure->text, PROTO_TEXT_MAX);
    failure->text[length] = '\0';
    /* Arguments may hold what others chose (a command's name, a path): what is not printable must not reach a
     * terminal, nor make the message one that cannot be sent. */
    utf8_make_plain(failure->text, length);
    failure->error = error;
    failure->text_length = (uint32_t)length;
}
