/* SPDX-License-Identifier: Apache-2.0 */
#include "client/objects/synced_state.h"

struct synced_step synced_step(enum gpupool_synced_state state, enum synced_side side, unsigned access) {
    enum gpupool_synced_state newer = synced_newer(side);
    bool writes = access == GPUPOOL_WRITE || access == GPUPOOL_OVERWRITE;

    if (access == GPUPOOL_OVERWRITE)
        return (struct synced_step){SYNCED_KEEP, true, true, newer};
    if (state == GPUPOOL_SYNCED_UNINITIALIZED) {
        if (access == SYNCED_FETCH) /* there is nothing to bring */
            return (struct synced_step){SYNCED_KEEP, false, false, state};
        return (struct synced_step){SYNCED_ZERO, true, writes, newer};
    }
    if (synced_is_good(state, side))
        return (struct synced_step){SYNCED_KEEP, true, writes, writes ? newer : state};
    return (struct synced_step){SYNCED_COPY, true, writes, writes ? newer : GPUPOOL_SYNCED_IN_STEP};
}

enum gpupool_synced_state synced_lose(enum gpupool_synced_state state, enum synced_side side) {
    return (enum gpupool_synced_state)((unsigned)state & ~(1u << side));
}
