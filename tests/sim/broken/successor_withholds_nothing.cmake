# A queue's record does not say that parts wait for it.
set(SOURCE daemon/core/kept.c)
set(FIND [==[        .withholds = queue->withholds,
        .withheld_value = queue->withholds ? queue->withheld_value : 0,
]==])
set(REPLACE [==[
]==])
set(EXPECTED "is let go before")
set(SEED 200)
