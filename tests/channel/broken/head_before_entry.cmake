# The head is written before the entries.
set(SOURCE client/core/sender.c)
set(FIND [==[    words_write(entry + 1, element->metadata, element->metadata_bytes);
]==])
set(REPLACE [==[    word_store(&sender->page->head, sequence, WORD_TOTAL);
    words_write(entry + 1, element->metadata, element->metadata_bytes);
]==])
set(EXPECTED "sound pages|an element has what it was sent with|a frame stays as it was|metadata is as")
