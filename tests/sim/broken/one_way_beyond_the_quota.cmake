# A part that comes back one-way becomes a lease of its own, whatever the quotas say.
set(SOURCE daemon/core/core_leases.c)
set(FIND [==[    if (!part_has_room(&part, queue != NULL))
        return is_one_way ? release_beyond(&part, queue, release->fence_value) : PROTO_E_LIMIT;]==])
set(REPLACE [==[    if (!is_one_way && !part_has_room(&part, queue != NULL))
        return PROTO_E_LIMIT;]==])
set(EXPECTED "bytes are counted wrong|a tenant is charged with something else than it has|the release of a part gets another answer than is right")
