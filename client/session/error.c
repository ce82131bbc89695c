/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/include/gpupool/gpupool.h"
#include "proto/proto.h"
#include "proto/text.h"

/* The library hands the wire's numbers on unchanged. */
_Static_assert(GPUPOOL_E_INVALID == -PROTO_E_INVALID && GPUPOOL_E_STALE == -PROTO_E_STALE &&
                   GPUPOOL_E_NO_NAME == -PROTO_E_MAX,
               "GPUPOOL_E_… are the wire's errors, negated");
_Static_assert(ERROR_TEXT_SIZE > PROTO_TEXT_MAX, "the daemon's text fits");

/* A text that was cut ends on a character boundary: a reader of UTF-8 must not choke on half a character. */
static void cut_at_character(char *text, size_t length, size_t size) {
    if (length >= size)
        text[text_whole_characters(text, size - 1)] = '\0';
}

int error_set(int error, const char *format, ...) {
    char *text = client_thread()->error_text;
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(text, ERROR_TEXT_SIZE, format, arguments);
    va_end(arguments);
    cut_at_character(text, length > 0 ? (size_t)length : 0, ERROR_TEXT_SIZE);
    return error_end(error);
}

int error_prefix(int error, const char *format, ...) {
    char text[ERROR_TEXT_SIZE];
    va_list arguments;

    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0)
        return error_end(error);
    size_t used = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
    int rest = snprintf(text + used, sizeof text - used, ": %s", client_thread()->error_text);
    cut_at_character(text, used + (rest > 0 ? (size_t)rest : 0), sizeof text);
    memcpy(client_thread()->error_text, text, ERROR_TEXT_SIZE);
    return error_end(error);
}

int error_no_memory(void) {
    return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the process's heap");
}

bool error_lacks_descriptors(void) {
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    if (fd >= 0)
        close(fd);
    return fd < 0 && errno == EMFILE;
}

const char *error_advice(int number) {
    return number == EMFILE
               ? ": this process has as many descriptors as RLIMIT_NOFILE allows; raise it (ulimit -n)"
           : number == ENFILE ? ": the machine has as many open files as fs.file-max allows"
                              : "";
}

int error_lost_descriptor(const char *what) {
    struct rlimit limit;
    unsigned long long most = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;

    return error_set(
        GPUPOOL_E_DRIVER,
        "%s: its descriptor did not arrive: EMFILE (%s): this process has as many as RLIMIT_NOFILE "
        "allows (%llu). Close some, or raise it (ulimit -n), and try again",
        what, strerrordesc_np(EMFILE), most);
}

void error_save(char text[static ERROR_TEXT_SIZE]) {
    memcpy(text, client_thread()->error_text, ERROR_TEXT_SIZE);
}

void error_restore(const char text[static ERROR_TEXT_SIZE]) {
    memcpy(client_thread()->error_text, text, ERROR_TEXT_SIZE);
}

int gpupool_error_number(void) {
    return client_thread()->error;
}

const char *gpupool_error_text(void) {
    const struct client_thread *thread = client_thread();
    return thread->error != 0 ? thread->error_text : "";
}

const char *gpupool_error_name(int error) {
    switch (error) {
    case GPUPOOL_OK:
        return "GPUPOOL_OK";
#define NAME(name)                                                                                           \
    case name:                                                                                               \
        return #name
        NAME(GPUPOOL_E_INVALID);
        NAME(GPUPOOL_E_VERSION);
        NAME(GPUPOOL_E_NO_POOL);
        NAME(GPUPOOL_E_TOO_LARGE);
        NAME(GPUPOOL_E_EXHAUSTED);
        NAME(GPUPOOL_E_STALE);
        NAME(GPUPOOL_E_NO_TOKEN);
        NAME(GPUPOOL_E_SHARED);
        NAME(GPUPOOL_E_LIMIT);
        NAME(GPUPOOL_E_DRIVER);
        NAME(GPUPOOL_E_SHUTDOWN);
        NAME(GPUPOOL_E_NO_MEMORY);
        NAME(GPUPOOL_E_CANCELLED);
        NAME(GPUPOOL_E_NO_NAME);
        NAME(GPUPOOL_E_ENDED);
        NAME(GPUPOOL_E_VACANT);
        NAME(GPUPOOL_E_CONNECT);
        NAME(GPUPOOL_E_DISCONNECTED);
        NAME(GPUPOOL_E_TIMED_OUT);
        NAME(GPUPOOL_E_PROTOCOL);
        NAME(GPUPOOL_E_FORKED);
        NAME(GPUPOOL_E_CAPTURING);
        NAME(GPUPOOL_E_NO_GPU);
        NAME(GPUPOOL_E_LOST);
#undef NAME
    default:
        return "GPUPOOL_E_unknown";
    }
}
