# A segment goes back to the driver, and to another tenant, while a process has it mapped.
set(SOURCE daemon/core/pool.c)
set(FIND [==[    list_for_each_entry_safe(struct segment, segment, &pool->idle, idle_link) {]==])
set(REPLACE [==[    list_for_each_entry_safe(struct segment, segment, &pool->segments, link) {
        if (!segment->is_empty)
            continue;]==])
set(EXPECTED "a segment is retired that a process may have mapped")
