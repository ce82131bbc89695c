# A lease waits for a fence, and its record does not say so.
set(SOURCE daemon/core/fence.c)
set(FIND [==[    lease->fence_value = value;
    kept_change(lease->session->core, lease->record);
]==])
set(REPLACE [==[    lease->fence_value = value;
]==])
set(EXPECTED "does not agree with the core")
