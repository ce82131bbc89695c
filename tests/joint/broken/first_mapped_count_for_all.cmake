# 21: the first k of n segments were mapped, and all count.
set(SOURCE client/session/segment.c)
set(FIND [==[    unsigned mapped = map_all(parts, count, mappings, memory, &error);]==])
set(REPLACE [==[    unsigned mapped = map_all(parts, count, mappings, memory, &error);
    if (mapped > 0 && mapped < count)
        return pthread_mutex_unlock(&segments->mappings_lock);]==])
set(EXPECTED "all addresses of a buffer map memory|a mapping is taken away that there is")
set(SEED 407)
