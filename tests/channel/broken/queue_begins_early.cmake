# A new queue begins with an element that was sent before.
set(SOURCE client/core/sender.c)
set(FIND [==[sender->places[i].begins = sender->head + 1;]==])
set(REPLACE [==[sender->places[i].begins = sender->head > 0 ? sender->head : 1;]==])
set(EXPECTED "a queue begins with what is sent|no element is dropped beside a free slot|a free slot is found")
