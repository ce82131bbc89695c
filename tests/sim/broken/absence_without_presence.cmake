# The list's silence is taken for an answer also where the list never had the process.
set(SOURCE daemon/core/death.c)
set(FIND [==[if (facts->seen && !facts->under_mps]==])
set(REPLACE [==[if (!facts->under_mps]==])
set(EXPECTED "while the GPU work of its last owner's process goes on")
set(SEED 230)
