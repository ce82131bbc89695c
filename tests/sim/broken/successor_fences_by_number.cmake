# A successor has fences in the order of their numbers, which go round: one behind them stops the queue.
set(SOURCE daemon/core/heir_leases.c)
set(FIND [==[    return left != right ? (left > right) - (left < right) : heir_compare_numbers(a, b);
]==])
set(REPLACE [==[    return left != right ? (left < right) - (left > right) : heir_compare_numbers(a, b);
]==])
set(EXPECTED "although fences of its tenant are ready")
set(SEED 411)
