/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file has a line for each setting: "Name: number", or "Name: \"text\"". Settings that concern the GPU's
 * own manager are in the text of RegistryDwords, and for one GPU of RegistryDwordsPerDevice, as
 * "Name=number;".
 */
#include "gpu/driver_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* Longer lines than any of the module's parameters (RegistryDwords has a few hundred bytes at most). */
#define LINE_SIZE 4096u

/* The release notes of driver 260.19.36: system memory that the driver allocates is cleared, unless this is
 * 0. */
static const char host_setting[] = "InitializeSystemMemoryAllocations";
/* The open kernel module (memory manager, registry overrides): device memory is scrubbed when it is freed,
 * unless this is not 0. */
static const char device_setting[] = "RMDisableScrubOnFree";

static bool host_line(const char *line) {
    size_t length = sizeof host_setting - 1;
    return strncmp(line, host_setting, length) == 0 && line[length] == ':' &&
           strtoul(line + length + 1, NULL, 0) == 0;
}

static bool device_line(const char *line) {
    const char *found = line;

    if (strncmp(line, "RegistryDwords", 14) != 0)
        return false;
    while ((found = strcasestr(found, device_setting)) != NULL) {
        found += sizeof device_setting - 1;
        if (*found == '=' && strtoul(found + 1, NULL, 0) != 0)
            return true;
    }
    return false;
}

const char *driver_settings_unclean(const char *path, bool is_host) {
    char line[LINE_SIZE];
    _cleanup_(fclosep) FILE *file = fopen(path, "re");

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (is_host ? host_line(line) : device_line(line))
            return is_host ? host_setting : device_setting;
    return NULL;
}
