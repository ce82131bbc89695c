# SPDX-License-Identifier: Apache-2.0
# Makes the static library ARCHIVE of the relocatable objects MEMBERS. The first member is what every program needs; the others
# use names of it. All names but the public ones become local to their member; the names that other members use get the prefix
# gpupool_internal_ and keep their hidden visibility.
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Names of a member by nm, without those that are public.
function(names_of ret_names member)
  execute_process(COMMAND ${NM} --format=just-symbols ${ARGN} ${member} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" names "${text}")
  list(FILTER names EXCLUDE REGEX "^gpupool_")
  set(${ret_names} ${names} PARENT_SCOPE)
endfunction()

list(GET MEMBERS 0 first)
names_of(defined ${first} --defined-only --extern-only)
set(internal)
foreach(member IN LISTS MEMBERS)
  names_of(wanted ${member} --undefined-only)
  list(APPEND internal ${wanted})
endforeach()
list(REMOVE_DUPLICATES internal)
list(SORT internal)

set(renamed)
foreach(name IN LISTS internal)
  if(name IN_LIST defined)
    string(APPEND renamed "${name} gpupool_internal_${name}\n")
  endif()
endforeach()
set(table ${ARCHIVE}.internal)
file(WRITE ${table} "${renamed}")

run(${CMAKE_COMMAND} -E rm -f ${ARCHIVE})
foreach(member IN LISTS MEMBERS)
  cmake_path(GET member FILENAME name)
  set(localised ${ARCHIVE}.members/${name})
  file(MAKE_DIRECTORY ${ARCHIVE}.members)
  # In two steps: the second one keeps the new names.
  run(${OBJCOPY} --redefine-syms=${table} ${member} ${localised})
  run(${OBJCOPY} --wildcard --keep-global-symbol=gpupool_* ${localised})
  run(${AR} qcs ${ARCHIVE} ${localised})
endforeach()
