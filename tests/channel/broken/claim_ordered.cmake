# The claim of an element is no total access: it may reach memory after the look at the floor.
set(SOURCE client/core/receiver.c)
set(FIND [==[taken, sequence, WORD_TOTAL);]==])
set(REPLACE [==[taken, sequence, WORD_ORDERED);]==])
set(EXPECTED "a slot is not reused while a place holds it|a frame stays as it was|an element has what|elements are received|a loan is behind|sound pages")
