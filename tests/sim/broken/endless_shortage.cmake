# A shortage that is over stays marked in the sessions' pages.
set(SOURCE daemon/core/session.c)
set(FIND [==[atomic_fetch_and_explicit(&session->page->shortage.pools, ~pool_bit(pool)]==])
set(REPLACE [==[atomic_fetch_and_explicit(&session->page->shortage.pools, UINT64_MAX]==])
set(EXPECTED "a session is told of a shortage that is over")
