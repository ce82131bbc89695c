# Sleep is announced by no total access: the head is looked at before others see the sleep.
set(SOURCE client/core/receiver.c)
set(FIND [==[void receiver_sleep_begin(struct receiver *receiver, struct channel_sleep *ret_sleep) {
    word_store(&receiver->page->sleeps, ++receiver->sleeps, WORD_TOTAL);]==])
set(REPLACE [==[void receiver_sleep_begin(struct receiver *receiver, struct channel_sleep *ret_sleep) {
    word_store(&receiver->page->sleeps, ++receiver->sleeps, WORD_ORDERED);]==])
set(EXPECTED "a change of a word wakes its sleepers|a consumer does not sleep beside an element")
