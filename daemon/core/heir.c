/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/core/heir.h"

#include <stdlib.h>

#include "base/array.h"
#include "daemon/core/core.h"
#include "daemon/core/tenant.h"

void heir_bind(const struct heir *heir, uint32_t record, void *object, uint32_t *ret_record) {
    estate_bind(heir->estate, record, object);
    *ret_record = record;
}

void *heir_object(const struct heir *heir, uint32_t record, enum kept_kind kind) {
    return estate_object(heir->estate, record, kind);
}

struct pool *heir_pool(const struct heir *heir, uint32_t id) {
    return core_find_pool(heir->core, id);
}

struct session *heir_session(const struct heir *heir, uint64_t id) {
    list_for_each_entry(struct session, session, &heir->core->sessions, link) {
        if (session->id == id)
            return session;
    }
    return NULL;
}

int heir_tenant(struct heir *heir, const struct kept_tenant *kept, struct tenant **ret_tenant) {
    int r = tenant_get(heir->core, heir_tenant_id(kept), ret_tenant);
    return r == -ESRCH ? heir_refuse(heir, "a scope is missing") : r;
}

void heir_sort(struct found_records *records, int (*compare)(const void *a, const void *b)) {
    if (records->count > 0)
        qsort(records->list, records->count, sizeof *records->list, compare);
}

int heir_compare_numbers(const void *a, const void *b) {
    uint64_t left = ((const struct found_record *)a)->number, right = ((const struct found_record *)b)->number;
    return (left > right) - (left < right);
}

int heir_find_all(struct heir *heir, enum kept_kind kind, uint64_t (*number_of)(const void *payload),
                  const char *twice, struct found_records *ret_records) {
    struct estate_found found = {0};
    size_t room = 0;

    while (estate_next(heir->estate, kind, found.record, &found)) {
        struct found_record *list = array_room(ret_records->list, ret_records->count, &room, sizeof *list);
        if (list == NULL)
            return -ENOMEM;
        ret_records->list = list;
        list[ret_records->count++] = (struct found_record){
            .record = found.record, .number = number_of(found.payload), .payload = found.payload};
    }
    heir_sort(ret_records, heir_compare_numbers);
    for (size_t i = 1; i < ret_records->count; i++)
        if (ret_records->list[i].number == ret_records->list[i - 1].number)
            return heir_refuse(heir, twice);
    return 0;
}

int heir_add_in_order(struct heir *heir, enum kept_kind kind, uint64_t (*number_of)(const void *payload),
                      const char *twice, int (*add)(struct heir *heir, const struct found_record *found)) {
    struct found_records records = {0};

    int r = heir_find_all(heir, kind, number_of, twice, &records);
    for (size_t i = 0; r == 0 && i < records.count; i++)
        r = add(heir, &records.list[i]);
    free(records.list);
    return r;
}
