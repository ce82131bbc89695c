# A session that has work on the GPU is told to close segments before those that have none were asked.
set(SOURCE daemon/core/closing.c)
set(FIND [==[(is_last_resort || !is_stopped)]==])
set(REPLACE [==[true]==])
set(EXPECTED "a busy session is to close segments before idle ones are asked")
set(SEED 492)
