# A larger segment serves a request for whole segments of one size.
set(SOURCE daemon/core/segment.c)
set(FIND [==[    return shelf_of_node(tree_find(shelves, size_bytes));]==])
set(REPLACE [==[    return shelf_of_node(tree_at_least(shelves, size_bytes));]==])
set(EXPECTED "a block is no whole segment of the size that was asked")
