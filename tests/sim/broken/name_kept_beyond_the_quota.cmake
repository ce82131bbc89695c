# Names keep more than the quota allows.
set(SOURCE daemon/core/core_names.c)
set(FIND [==[            bytes - kept_before <= quota_left(&tenant->quota, QUOTA_KEPT));]==])
set(REPLACE [==[            true);]==])
set(EXPECTED "a publication gets another answer than is right")
