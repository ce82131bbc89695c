# 8: the stretch ends at an extent's border.
set(SEED 7584)
set(SOURCE client/core/stretch.c)
set(FIND [==[        narrow_below(extent, extent->span->highest, stretch);]==])
set(REPLACE [==[        stretch->start = end;]==])
set(EXPECTED "a request waits, and there is room for it")
