# A queue is admitted before its beginning is written.
set(SOURCE client/core/sender.c)
set(FIND [==[        word_store(&queue->begins, sender->places[i].begins, WORD_PLAIN);
        word_store(&queue->number, sender->places[i].queue, WORD_ORDERED);]==])
set(REPLACE [==[        word_store(&queue->number, sender->places[i].queue, WORD_ORDERED);
        word_store(&queue->begins, sender->places[i].begins, WORD_PLAIN);]==])
set(EXPECTED "a queue begins with what is sent|elements are received in order|sound pages")
