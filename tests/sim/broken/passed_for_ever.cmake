# An overdue request is still overtaken: small requests that keep coming starve a large one.
set(SOURCE daemon/core/waiting.c)
set(FIND [==[wait_queue_is_behind(request) ? take_beside]==])
set(REPLACE [==[false ? take_beside]==])
set(EXPECTED "passed by later ones more often")
