/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CORE_CACHE_LINE_H
#define CLIENT_CORE_CACHE_LINE_H

/* Of x86-64 and most arm64: what two threads write lies on different lines. */
#define CACHE_LINE_BYTES 64u

#endif
