# The charge for a part of a lease stays when the part is released.
set(SOURCE daemon/core/lease.c)
set(FIND [==[    block_charge(block, -size_bytes);
    block->held_bytes -= size_bytes;]==])
set(REPLACE [==[    block->held_bytes -= size_bytes;]==])
set(EXPECTED "bytes are counted wrong")
