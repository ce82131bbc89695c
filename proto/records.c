/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/records.h"

#include <string.h>

#include "base/beside.h"

#define HOURS_MAX   (UINT64_C(24) * 366 * 10)
#define RECORDS_MAX (UINT64_C(1) << 40)

const char *proto_records_path(const char *admin_path, char *path, size_t size) {
    path_beside(admin_path, PROTO_RECORDS_SUFFIX, path, size);
    return path;
}

void proto_records_lay_out(struct proto_records *records, uint64_t records_bytes, uint64_t hours,
                           uint32_t pools) {
    uint64_t hours_bytes = hours * pools * sizeof(struct proto_hour);

    assert(hours > 0 && records_bytes >= sizeof(struct proto_record));
    memset(records, 0, sizeof *records);
    memcpy(records->magic, PROTO_RECORDS_MAGIC, sizeof records->magic);
    records->pools_count = pools;
    records->hours_count = hours;
    records->hours_offset = PROTO_RECORDS_PAGE;
    records->records_offset = records->hours_offset + hours_bytes;
    records->records_count = records_bytes / sizeof(struct proto_record);
    records->file_bytes = records->records_offset + records->records_count * sizeof(struct proto_record);
    atomic_init(&records->next, 1);
}

bool proto_records_are_sane(const struct proto_records *records, uint64_t file_bytes) {
    struct proto_records expected;

    if (file_bytes < PROTO_RECORDS_PAGE ||
        memcmp(records->magic, PROTO_RECORDS_MAGIC, sizeof records->magic) != 0 ||
        records->records_count == 0 || records->records_count > RECORDS_MAX || records->hours_count == 0 ||
        records->hours_count > HOURS_MAX || records->pools_count > PROTO_POOLS_MAX)
        return false;
    proto_records_lay_out(&expected, records->records_count * sizeof(struct proto_record),
                          records->hours_count, records->pools_count);
    return records->hours_offset == expected.hours_offset &&
           records->records_offset == expected.records_offset && records->file_bytes == expected.file_bytes &&
           file_bytes >= expected.file_bytes;
}

bool proto_records_read(struct proto_records *records, uint64_t number, struct proto_record *ret_record) {
    struct proto_record *record = proto_records_record(records, number);

    if (number == 0 || atomic_load_explicit(&record->number, memory_order_acquire) != number)
        return false;
    memcpy(ret_record, record, sizeof *ret_record);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&record->number, memory_order_relaxed) == number;
}

const char *proto_record_word(unsigned kind) {
    switch (kind) {
#define RECORD(name, number, word)                                                                           \
    case number:                                                                                             \
        return word;
#include "proto/records.def"
#undef RECORD
    default:
        return "?";
    }
}
