# Makes a source of the core with one fault planted: cmake -DFAULT=….cmake -DROOT=… -DOUTPUT=… -P break.cmake
# A fault names the source, and the text in it that another takes the place of; that text has to be there exactly once.
include(${FAULT})
file(READ "${ROOT}/${SOURCE}" text)
string(FIND "${text}" "${FIND}" first)
string(FIND "${text}" "${FIND}" last REVERSE)
if(first EQUAL -1 OR NOT first EQUAL last)
  message(FATAL_ERROR "${FAULT}: the text that it replaces is not in ${SOURCE} exactly once. "
                      "The source has changed: plant the same fault there anew.")
endif()
string(REPLACE "${FIND}" "${REPLACE}" text "${text}")
file(WRITE "${OUTPUT}" "${text}")
