# The record of a session does not say how many questions it was asked.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .n_questions = session->n_questions,
]==])
set(REPLACE [==[        .n_questions = 0,
]==])
set(EXPECTED "a successor counts a session's questions anew")
