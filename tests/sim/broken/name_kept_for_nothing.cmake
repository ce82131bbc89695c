# The bytes that names keep are not charged.
set(SOURCE daemon/core/edition.c)
set(FIND [==[    if ((edition->flags & PROTO_PUBLISH_KEEP) != 0)
        charge_force(&edition->kept, &session->tenant->quota, QUOTA_KEPT, edition->bytes);]==])
set(REPLACE [==[]==])
set(EXPECTED "a tenant is charged for other names than it keeps")
