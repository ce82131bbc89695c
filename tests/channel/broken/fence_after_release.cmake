# The fence of a release is written after the release.
set(SOURCE client/core/receiver.c)
set(FIND [==[    channel_fence_write(&mark->fence, fence);
    word_store(&mark->released, receiver->slots[slot], WORD_ORDERED);]==])
set(REPLACE [==[    word_store(&mark->released, receiver->slots[slot], WORD_ORDERED);
    channel_fence_write(&mark->fence, fence);]==])
set(EXPECTED "a loan is behind")
