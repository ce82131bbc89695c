# An element is received before the mark says so.
set(SOURCE client/core/receiver.c)
set(FIND [==[    word_store(&receiver->page->marks[ret_element->slot].taken, sequence, WORD_PLAIN);]==])
set(REPLACE [==[    word_store(&receiver->page->received, sequence + 1, WORD_ORDERED);
    word_store(&receiver->page->marks[ret_element->slot].taken, sequence, WORD_PLAIN);]==])
set(EXPECTED "what a dead process held is received once more|at rest each slot|does not sleep beside a free slot|a free slot is found")
