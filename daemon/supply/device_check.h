/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SUPPLY_DEVICE_CHECK_H
#define DAEMON_SUPPLY_DEVICE_CHECK_H
/*
 * Asks a device whether it still works. CUDA has errors that stay: after an illegal address, an uncorrectable
 * memory error or the loss of the GPU every further call on the device fails in this process, whatever it is,
 * until the process ends. Which errors are of that kind depends on the driver; that they come again shows it.
 * So a failing call is followed by others that ask for nothing, and only when they fail too is the device
 * lost.
 */
#include "daemon/supply/backing.h"
#include "gpu/gpu.h"

struct worker;

/* [slow], on the device's worker. Returns true while the device answers; false when it is lost, with a text
 * for people in error. A device that has no memory left answers. */
bool device_answers(const struct gpu *gpu, unsigned device, struct worker *worker,
                    char error[BACKING_ERROR_SIZE]);

#endif
