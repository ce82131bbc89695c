# Memory that has been in quarantine for a second is taken for safe.
set(SOURCE daemon/core/core.c)
set(FIND [==[void core_tick(struct core *core, uint64_t now_ns) {
]==])
set(REPLACE [==[void core_tick(struct core *core, uint64_t now_ns) {
    list_for_each_entry(struct session, session, &core->sessions, link) {
        while (session->state == SESSION_QUARANTINED && session->lost_ns + NS_PER_S <= now_ns &&
               !list_is_empty(&session->leases))
            lease_close(container_of(session->leases.next, struct lease, session_link));
    }
]==])
set(EXPECTED "while the GPU work of its last owner's process goes on")
