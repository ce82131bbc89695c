/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_BUFFER_H
#define CLIENT_BUFFER_H
/*
 * What the library's own objects need of buffers beyond the public calls.
 */
struct gpupool_buffer;
struct gpupool_client;

/* gpupool_release(), behind a stream of the device that is named. By the public call, host memory belongs to no device, and
 * a default stream is taken for the current device's: wrong for an object that knows its device. The device has to be
 * one of this process (devices_need_device()). */
int buffer_release_on(struct gpupool_client *client, struct gpupool_buffer *buffer, unsigned device,
                      void *stream);

#endif
