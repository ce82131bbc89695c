# Memory is called an estate before its head is whole.
set(SOURCE daemon/estate/estate.c)
set(FIND [==[    store(estate, estate->memory + sizeof head.magic, &head.major, sizeof head - sizeof head.magic);
    store(estate, estate->memory, &head.magic, sizeof head.magic); /* it is an estate from now on */
]==])
set(REPLACE [==[    store(estate, estate->memory, &head, sizeof head);
]==])
set(EXPECTED "its head is damaged")
set(SEED 80)
