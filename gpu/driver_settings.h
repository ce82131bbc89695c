/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPU_DRIVER_SETTINGS_H
#define GPU_DRIVER_SETTINGS_H
/*
 * The settings of NVIDIA's kernel module that keep it from clearing memory: an owner of the machine may have
 * turned the clearing off, to save time. The module tells its settings in a file.
 */
#include <stdbool.h>

#define DRIVER_SETTINGS_FILE "/proc/driver/nvidia/params"

/* The setting in the file by which memory of the host, or of devices, comes to its next user as its last one
 * left it. NULL: there is none, or the file cannot be read. */
const char *driver_settings_unclean(const char *path, bool is_host);

#endif
