# 13: a MERGE leaves behind packets that were put into the outbox after it.
set(SOURCE client/session/outbox.c)
set(FIND [==[    return append_locked(outbox, packet, size, false);]==])
set(REPLACE [==[    static uint8_t kept[256];
    static size_t kept_size;
    static struct outbox *of;
    if (kept_size > 0 && of == outbox) {
        size_t before = kept_size;
        kept_size = 0;
        (void)append_locked(outbox, packet, size, false);
        return append_locked(outbox, kept, before, false);
    }
    if (kept_size == 0 && size <= sizeof kept) {
        memcpy(kept, packet, size);
        kept_size = size;
        of = outbox;
        return 0;
    }
    return append_locked(outbox, packet, size, false);]==])
set(EXPECTED "the daemon refuses a name|cannot become part of the lease")
