# Two names whose hashes are equal are one.
set(SOURCE daemon/core/name.c)
set(FIND [==[if (strcmp(name->text, text) == 0)]==])
set(REPLACE [==[if (text[0] != 0)]==])
set(EXPECTED "otherwise than is right|a name is listed|other names|another one comes before|could be answered|a parcel has ended too early|another answer than is right")
