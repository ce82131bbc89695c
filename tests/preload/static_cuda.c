/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest CUDA program: gpupoolctl run looks at it, built with the static runtime and with the shared
 * one. */
#include <stddef.h>

int cudaMalloc(void **memory, size_t size_bytes);

int main(void) {
    void *memory;
    return cudaMalloc(&memory, 1);
}
