/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/record_words.h"

#include <stddef.h>

#include "base/array.h"
#include "base/units.h"
#include "proto/proto.h"

static const char *quota_words(unsigned detail) {
    static const char *const words[] = {
        [PROTO_RECORD_QUOTA_SESSIONS] = "sessions",
        [PROTO_RECORD_QUOTA_LEASES] = "leases",
        [PROTO_RECORD_QUOTA_RANGES] = "ranges",
        [PROTO_RECORD_QUOTA_SEGMENTS] = "segments",
        [PROTO_RECORD_QUOTA_WAITING] = "waiting requests",
        [PROTO_RECORD_QUOTA_REPLIES] = "replies",
        [PROTO_RECORD_QUOTA_POOL] = "memory of the pool",
    };
    return detail < ARRAY_LENGTH(words) && words[detail] != NULL ? words[detail] : "?";
}

static const char *reason_words(unsigned reason) {
    switch ((enum proto_error)reason) {
    case PROTO_E_NO_POOL:
        return "there is no such pool for the user";
    case PROTO_E_TOO_LARGE:
        return "more than the pool may ever have";
    case PROTO_E_EXHAUSTED:
        return "nothing was free that it could have";
    case PROTO_E_LIMIT:
        return "the session has as many leases or requests as it may";
    case PROTO_E_DRIVER:
        return "the driver or the kernel gave no more";
    case PROTO_E_NO_MEMORY:
        return "the daemon had no memory for its bookkeeping";
    case PROTO_E_CANCELLED:
        return "its client cancelled it";
    case PROTO_E_INVALID:
        return "the pool has no such segments";
    default:
        return "?";
    }
}

void record_words_why(FILE *stream, unsigned reason, unsigned detail) {
    if (detail != PROTO_RECORD_QUOTA_NONE)
        fprintf(stream, "the user's quota of %s", quota_words(detail));
    else
        fputs(reason_words(reason), stream);
}

void record_words_refusal(FILE *stream, const struct proto_record *record) {
    fprintf(stream, "%s refused", BYTES_TEXT(record->bytes));
    if ((record->flags & PROTO_RECORD_DEADLINE) != 0)
        fprintf(stream, " at its deadline, after a wait of %s", NS_TEXT(record->value));
    else if ((record->flags & PROTO_RECORD_WAITED) != 0)
        fprintf(stream, " after a wait of %s", NS_TEXT(record->value));
    fputs(": ", stream);
    record_words_why(stream, record->reason, record->detail);
    if ((record->flags & PROTO_RECORD_PROBE) != 0)
        fputs(" (the client tries something else)", stream);
    if (record->pool != 0)
        fprintf(stream, "; the pool lent %s", BYTES_TEXT(record->leased_bytes));
}
