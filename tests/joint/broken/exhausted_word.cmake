# 17: a stream's word goes to another stream with a write under way. There are two words, so that it happens.
set(SEED 1)
set(SOURCE client/session/fence.c)
set(FIND [==[    if (fences->count < fences->n_words) {
        fences->words[fences->count].value = word_now(fences, fences->count);
        return &fences->words[fences->count++];
    }
    for (unsigned i = 0; i < fences->n_words; i++) {
        unsigned number = (fences->next + i) % fences->n_words;
        struct fence_word *word = &fences->words[number];
        if (word->users == 0 && proto_fence_is_ready(word_now(fences, number), word->value)) {]==])
set(REPLACE [==[    if (fences->count < 2) {
        fences->words[fences->count].value = word_now(fences, fences->count);
        return &fences->words[fences->count++];
    }
    for (unsigned i = 0; i < fences->count; i++) {
        unsigned number = (fences->next + i) % fences->count;
        struct fence_word *word = &fences->words[number];
        if (word->users == 0) {]==])
set(EXPECTED "work on memory runs behind all work of the memory's earlier users|the GPU is done with memory that no stream orders")
