# A new queue begins after the next element.
set(SOURCE client/core/sender.c)
set(FIND [==[sender->places[i].begins = sender->head + 1;]==])
set(REPLACE [==[sender->places[i].begins = sender->head + 2;]==])
set(EXPECTED "a queue has all that is sent|sound pages|is received")
