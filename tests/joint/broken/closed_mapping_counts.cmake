# 20: a mapping that was closed counts as there.
set(SOURCE client/core/arena.c)
set(FIND [==[        if (arena->slots[i].maps == segment)
            arena->slots[i].maps = 0;
}]==])
set(REPLACE [==[        if (arena->slots[i].maps == segment + 1)
            arena->slots[i].maps = 0;
}]==])
set(EXPECTED "all addresses of a buffer map memory|an address maps one segment|the core of a client is valid")
set(SEED 45)
