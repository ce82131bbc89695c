# What a part of a lease was charged with stays charged.
set(SOURCE daemon/core/lease.c)
set(FIND [==[    block_charge(block, -size_bytes);
    block->held_bytes -= size_bytes;]==])
set(REPLACE [==[    block->held_bytes -= size_bytes;]==])
set(EXPECTED "bytes are counted wrong")
