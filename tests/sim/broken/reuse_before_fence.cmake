# Every fence is taken for ready when it is polled.
set(SOURCE daemon/core/collect.c)
set(FIND [==[           fence_is_ready(queue->session, queue->word, head->fence_value)) {]==])
set(REPLACE [==[           true) {]==])
set(EXPECTED "what was released behind a fence is let go before the fence is ready")
