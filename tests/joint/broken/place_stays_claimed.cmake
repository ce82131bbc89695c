# 22: a place stays claimed when its segments are refused.
set(SEED 20)
set(SOURCE client/core/arena_plan.c)
set(FIND [==[    plan->place.size_bytes = plan->size_bytes; /* of]==])
set(REPLACE [==[    if (!is_full)
        return 0;
    plan->place.size_bytes = plan->size_bytes; /* of]==])
set(EXPECTED "the core of a client is valid")
