# The ranges that a part leaves behind are not charged to the tenant.
set(SOURCE daemon/core/lease.c)
set(FIND [==[    charge_force(&block->ranges_charge, &session->tenant->quota, QUOTA_RANGES, ranges);]==])
set(REPLACE [==[    charge_force(&block->ranges_charge, &session->tenant->quota, QUOTA_RANGES, block->ranges_charge.amount == 0);]==])
set(EXPECTED "a tenant is charged with something else than it has")
