# A successor does not know the session that made a channel.
set(SOURCE daemon/core/heir_names.c)
set(FIND [==[        .maker = kept->maker,
        .session = session,
    };
    if (!proto]==])
set(REPLACE [==[        .maker = kept->maker,
        .session = session != NULL && session->n_leases == 0 ? NULL : session,
    };
    if (!proto]==])
set(EXPECTED "a successor's records do not agree with its core|a channel is of another name, or another session's")
