# A trim leaves what the threads' caches have.
set(SOURCE client/cache/give_back.c)
set(FIND [==[    if (!choice->of_stream && choice->pool == 0)
        thread_caches_collect(&cache->threads, NULL, NULL, choice->idle_only);]==])
set(REPLACE [==[]==])
set(EXPECTED "a client that has given back everything holds nothing")
