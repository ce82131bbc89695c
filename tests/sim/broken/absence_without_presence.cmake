# The list's silence is taken for an answer also where the list never had the process.
set(SOURCE daemon/pool/death.c)
set(FIND [==[if (facts->seen && !facts->under_mps]==])
set(REPLACE [==[if (!facts->under_mps]==])
set(EXPECTED "while the GPU work of its last owner's process goes on")
# From another seed on: with clang, seed 77 comes upon a rare check of the model first ("given up while the pool grows").
set(FIRST_SEED 1000)
