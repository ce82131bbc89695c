/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_ORDERED_H
#define CLIENT_PRELOAD_ORDERED_H
/* Streams in whose order memory was lent. Thread-safe. */

/* Destroys a stream, if memory was used in the order of streams: the client must not name it to the driver
 * afterwards. NOT_OURS: the caller destroys it. */
int ordered_destroy(void *stream);

#endif
