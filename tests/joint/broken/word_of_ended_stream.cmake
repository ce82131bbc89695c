# A stream that ends leaves its word for memory of another device to the next stream under its handle.
set(SEED 905375)
set(SOURCE client/session/fence.c)
set(FIND [==[if (word->stream == stream && word->thread == 0)]==])
set(REPLACE [==[if (word->stream == stream && word->device > 0 && word->thread == 0)]==])
set(EXPECTED "no stream waits for a word that will not be written|work on memory runs behind all work of the memory's earlier users")
