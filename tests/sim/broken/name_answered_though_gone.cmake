# An answer that is not true any more is sent.
set(SOURCE daemon/core/name_wait.c)
set(FIND [==[        return answer_to(wait) == wait->state;
    }]==])
set(REPLACE [==[        return wait->state != NAME_WAIT_THERE || wait->name->edition != NULL;
    }]==])
set(EXPECTED "a request for a name is answered that another one comes before, or that has to wait|a request for a name gets another answer")
