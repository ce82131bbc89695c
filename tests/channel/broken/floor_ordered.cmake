# The raise of the floor is no total access: the claims are looked at before others see it.
set(SOURCE client/core/sender.c)
set(FIND [==[word_store(&sender->page->floor, sender->floor, WORD_TOTAL);]==])
set(REPLACE [==[word_store(&sender->page->floor, sender->floor, WORD_ORDERED);]==])
set(EXPECTED "a slot is not reused while a place|a frame stays as it was|sound pages")
