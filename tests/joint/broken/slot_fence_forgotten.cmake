# A slot forgets the fence of what left it.
set(SEED 102)
set(SOURCE client/core/arena.c)
set(FIND [==[        else if (is_ready(arena, slot->fence))
            slot->fence = fence;]==])
set(REPLACE [==[        else if (is_ready(arena, slot->fence))
            slot->fence = FENCE_NONE;]==])
set(EXPECTED "nothing is unmapped that enqueued work uses")
