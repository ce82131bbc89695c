# The head is no total access: the sleepers are looked at before others see it.
set(SOURCE client/core/sender.c)
set(FIND [==[word_store(&sender->page->head, sequence, WORD_TOTAL);]==])
set(REPLACE [==[word_store(&sender->page->head, sequence, WORD_ORDERED);]==])
set(EXPECTED "a change of a word wakes its sleepers|a consumer does not sleep beside an element")
