# An answer to an earlier question is taken for one to the newest.
set(SOURCE daemon/core/question.c)
set(FIND [==[reclaimed->asked < answers->question]==])
set(REPLACE [==[reclaimed->asked > answers->question]==])
set(EXPECTED "a request for idle memory ends, and a session has not answered")
set(SEED 88)
