# A successor lends memory that is withheld.
set(SOURCE daemon/core/heir_leases.c)
set(FIND [==[        .withheld_bytes = kept->withheld_bytes,
]==])
set(REPLACE [==[]==])
set(EXPECTED "a successor")
