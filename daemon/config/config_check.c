/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/config_check.h"

#include <string.h>

#include "base/units.h"
#include "daemon/loop/log.h"
#include "daemon/core/limits.h"
#include "gpu/gpu.h"

void config_note_place(struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number) {
    list_for_each_entry(struct config_section, section, &config->sections, link) {
        if (section->kind != kind)
            continue;
        section->is_there |= section->by_uuid
                                 ? uuid != NULL && memcmp(section->uuid, uuid, PROTO_UUID_BYTES) == 0
                                 : section->number == number;
    }
}

unsigned config_check_sizes(const char *name, const struct config_pool_sizes *sizes) {
    if (sizes->limit_bytes < SEGMENT_GRANULE) {
        log_warning(
            "%s: its limit of %s is less than a segment of %s, so it lends nothing: raise the limit, or say "
            "enabled = no",
            name, BYTES_TEXT(sizes->limit_bytes), BYTES_TEXT(SEGMENT_GRANULE));
        return 1;
    }
    if (sizes->reserve_bytes > sizes->limit_bytes) {
        log_warning("%s: its reserve of %s is above its limit of %s and is cut to it", name,
                    BYTES_TEXT(sizes->reserve_bytes), BYTES_TEXT(sizes->limit_bytes));
        return 1;
    }
    return 0;
}

unsigned config_check_sections(const struct config *config) {
    unsigned n_mistakes = 0;

    list_for_each_entry(const struct config_section, section, &config->sections, link) {
        struct gpu_uuid uuid;
        char text[GPU_UUID_TEXT_SIZE];

        /* Without device pools it is no mistake that the file speaks of them. */
        if (section->is_there || (section->kind == PROTO_POOL_DEVICE && config->gpu == CONFIG_GPU_NONE))
            continue;
        n_mistakes++;
        memcpy(uuid.bytes, section->uuid, sizeof uuid.bytes);
        gpu_uuid_format(&uuid, text);
        if (section->kind == PROTO_POOL_HOST)
            log_warning("[host %d]: this machine has no such NUMA node; the section is not used",
                        section->number);
        else if (section->by_uuid)
            log_warning("[device %s]: there is no such GPU; the section is not used", text);
        else
            log_warning("[device %d]: there is no such GPU; the section is not used", section->number);
    }
    return n_mistakes;
}
