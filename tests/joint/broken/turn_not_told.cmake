# The question of a request that was served in its process is not cancelled.
set(SEED 1398)
set(SOURCE client/cache/shortage.c)
set(FIND [==[        connection_cancel(&cache->session->connection, serving->question_id);]==])
set(REPLACE [==[        (void)cache;]==])
set(EXPECTED "a request that was served goes on")
