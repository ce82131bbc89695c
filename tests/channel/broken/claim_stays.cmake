# A claim that was given up stays in the page.
set(SOURCE client/core/receiver.c)
set(FIND [==[        word_store(&receiver->page->marks[ret_element->slot].taken, 0, WORD_ORDERED);
        *ret_wakes]==])
set(REPLACE [==[        *ret_wakes]==])
set(EXPECTED "a free slot is found|no element is dropped beside a free slot|does not sleep beside a free slot")
