# A successor takes a lost session for one that lives.
set(SOURCE daemon/core/heir_sessions.c)
set(FIND [==[    if (kept->state == SESSION_ACTIVE)
        return 0;
    if (!list_is_empty(&session->held)]==])
set(REPLACE [==[    if (kept->state == SESSION_ACTIVE || kept->board_slot == 0)
        return 0;
    if (!list_is_empty(&session->held)]==])
set(EXPECTED "a successor")
