/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon of a later release, for the tests: this one, with more in its estate. $GPUPOOL_LATER says what is more:
 *
 *   ignorable   a record of a further kind, which holds no memory
 *   holding     a record of a further kind, which may hold memory
 *   longer      8 bytes in each session's record. This daemon does not go on with its own estate then
 *
 * The linker has the calls of these functions come here (-Wl,--wrap).
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/core/kept.h"
#include "daemon/data/kept_data.h"
#include "daemon/estate/estate.h"

#define LATER_KIND  KEPT_DATA_KINDS /* the first number that is no kind's */
#define LATER_BYTES 16u

void __real_kept_data_kinds(struct estate_kind *kinds);
void __wrap_kept_data_kinds(struct estate_kind *kinds);
int __real_estate_make(struct estate *estate, void *memory, const struct estate_kind *kinds, unsigned n_kinds,
                       const struct estate_owner *owner);
int __wrap_estate_make(struct estate *estate, void *memory, const struct estate_kind *kinds, unsigned n_kinds,
                       const struct estate_owner *owner);
int __real_estate_open(struct estate *estate, void *memory, size_t size_bytes,
                       const struct estate_kind *kinds, unsigned n_kinds, const struct estate_owner *owner,
                       const char **ret_reason);
int __wrap_estate_open(struct estate *estate, void *memory, size_t size_bytes,
                       const struct estate_kind *kinds, unsigned n_kinds, const struct estate_owner *owner,
                       const char **ret_reason);

static const char text[LATER_BYTES] = "from later on";

static bool is_more(const char *what) {
    const char *wanted = getenv("GPUPOOL_LATER");

    return wanted != NULL && strcmp(wanted, what) == 0;
}

static bool has_kind(void) {
    return is_more("ignorable") || is_more("holding");
}

static void write_text(const void *object, void *payload) {
    memcpy(payload, object, LATER_BYTES);
}

void __wrap_kept_data_kinds(struct estate_kind *kinds) {
    __real_kept_data_kinds(kinds);
    if (has_kind())
        kinds[LATER_KIND] =
            (struct estate_kind){.size_bytes = LATER_BYTES, .holds = is_more("holding"), .write = write_text};
    if (is_more("longer"))
        kinds[KEPT_SESSION].size_bytes += 8;
}

int __wrap_estate_make(struct estate *estate, void *memory, const struct estate_kind *kinds, unsigned n_kinds,
                       const struct estate_owner *owner) {
    uint32_t record;
    int r = __real_estate_make(estate, memory, kinds, has_kind() ? LATER_KIND : n_kinds, owner);

    return r == 0 && has_kind() ? estate_add(estate, LATER_KIND, (void *)text, &record) : r;
}

/* An earlier daemon has removed the record, where it held nothing. */
int __wrap_estate_open(struct estate *estate, void *memory, size_t size_bytes,
                       const struct estate_kind *kinds, unsigned n_kinds, const struct estate_owner *owner,
                       const char **ret_reason) {
    struct estate_found found;
    uint32_t record;
    int r = __real_estate_open(estate, memory, size_bytes, kinds, has_kind() ? LATER_KIND : n_kinds, owner,
                               ret_reason);

    if (r < 0 || !has_kind() || estate_is_empty(estate))
        return r;
    if (!estate_next(estate, LATER_KIND, 0, &found))
        return estate_add(estate, LATER_KIND, (void *)text, &record);
    estate_bind(estate, found.record, (void *)text);
    return 0;
}
