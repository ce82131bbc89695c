/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PLUGINS_DEVICE_WAIT_H
#define CLIENT_PLUGINS_DEVICE_WAIT_H
/*
 * Waits for all work of this process on a device, as cudaFree() does: for hooks that give memory back and are
 * told of no stream. The plug-ins link no CUDA. They use the driver that the process has loaded.
 */
#include <gpupool/gpupool.h>

/* Waits. Without a driver, on the simulated GPU, it waits for the default stream. The caller's current
 * context is as before. Returns 0, or -1: the device cannot be waited for, because the driver has been shut
 * down or because a stream is captured. Thread-safe. */
int device_wait(struct gpupool_client *client, int device);

#endif
