# A record that was removed is used again in the same step.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[    slot->object = NULL;
    slot->is_removed = true;
    estate->n_records--;
]==])
set(REPLACE [==[    slot->object = NULL;
    slot->is_removed = true;
    estate->n_records--;
    if (chunk_of(estate, record)->n_slots % 2 == 1) {
        estate->changed = slot->next;
        slot->is_changed = slot->is_removed = false;
        push(estate, &estate->free[chunk_of(estate, record)->kind], record);
    }
]==])
set(EXPECTED "heirs.c|successor.c")
