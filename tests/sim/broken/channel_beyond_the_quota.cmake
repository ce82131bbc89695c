# A channel is kept beyond the quota.
set(SOURCE daemon/core/core_channels.c)
set(FIND [==[         block->held_bytes > quota_left(&tenant->quota, QUOTA_KEPT))) {]==])
set(REPLACE [==[         block->held_bytes > UINT64_MAX - 1)) {]==])
set(EXPECTED "the maker of a channel gets another answer than is right")
