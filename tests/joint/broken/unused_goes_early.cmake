# A shared buffer that no work of its process has used goes back without a fence.
set(SEED 106433)
set(SOURCE client/api/buffer.c)
set(FIND [==[    return leaves && stream == GPUPOOL_NO_STREAM &&]==])
set(REPLACE [==[    return leaves && piece == NULL &&]==])
set(EXPECTED "work on memory runs behind all work of the memory's earlier users")
