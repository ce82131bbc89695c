# A consumer is not told that it missed elements.
set(SOURCE client/core/receiver.c)
set(FIND [==[    element.missed = element.sequence - receiver->received;]==])
set(REPLACE [==[    element.missed = receiver->floor > receiver->received ? 0 : element.sequence - receiver->received;]==])
set(EXPECTED "elements are received in order")
