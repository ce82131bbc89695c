/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/memfd.h"

#include <string.h>

#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"

/* Memory of a few pages needs no huge one. */
#define ALIGN_BYTES UINT64_C(4096)

int memfd_map(int fd, size_t size_bytes, const char *what, struct own_mapping **ret_mapping) {
    int r = own_mapping_make(fd, size_bytes, ALIGN_BYTES, ret_mapping);

    return r == 0 ? 0
                  : error_set(GPUPOOL_E_DRIVER, "mapping %s: %s (%s)", what, strerrorname_np(-r),
                              strerrordesc_np(-r));
}
