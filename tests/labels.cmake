# Labels beside that of a test's part, by which ./dev chooses what a stage runs. An entry stands for all names that begin with it.
#
# slow      takes seconds: not in ./dev test quick, and in ./dev test once, in the release build
# threads   one process has several threads that share memory of the library: for ThreadSanitizer. Of runs with other host memory,
#           only those whose threads open segments
# planted   looks for a fault that was planted: the same with each compiler
# both      runs on pools of both kinds as it is: in ./dev test once with each, in the release build and under AddressSanitizer
# vmm       the run of such a test with export = vmm
# host_vmm  the run of a test with host pools whose export is vmm
# own_kind  says the kind of its device pools itself: a run with export = vmm is the same run
set(slow
  integration/calls integration/cache_ integration/classifier integration/death integration/devices integration/faults
  integration/histories integration/kills integration/pair_failures integration/service integration/siege integration/sleep_failures integration/sleep_names_failures integration/sleep_storm integration/soak
  integration/storm integration/streams integration/traces integration/waiting sim/finds_forgotten_closing
  sim/finds_withheld_for_one_fence system/alerts unit/client_lies docs/demo docs/dev_demo)
set(threads
  channel/threads unit/client unit/gpu unit/outbox$ unit/own_mapping unit/pointer_map unit/planted unit/word_wait integration/alloc integration/buffers integration/cache
  integration/connected integration/dispatch integration/fences integration/hand_over integration/histories$ integration/kills$
  integration/pairs integration/prepare integration/private integration/public_fences integration/recorded_streams integration/sleep_names_storm integration/sleep_storm integration/staging
  integration/streams integration/synced integration/threads integration/torch)
set(planted channel/finds_ joint/finds_ sim/finds_)
set(own_kind integration/arena$ integration/large$ integration/own_row$ integration/packing$ integration/parts$ integration/rows$ integration/rows_storm$
  integration/sleep$ integration/sleep_)
# Not labelled "threads", although the test is.
set(threads_not "integration/(hand_over|pairs|prepare|public_fences|recorded_streams|staging|staging_threads|synced|synced_devices|synced_streams)_host_vmm$")

# The programs of unit tests with the label "threads".
add_custom_target(threads-programs)

# To be called at the end of a directory with tests.
function(gpupool_label_tests)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(label slow threads planted own_kind)
    list(JOIN ${label} "|" any)
    set(chosen ${tests})
    list(FILTER chosen INCLUDE REGEX "^(${any})")
    if("${label}" STREQUAL "threads")
      list(FILTER chosen EXCLUDE REGEX "^${threads_not}")
    endif()
    if(chosen)
      set_property(TEST ${chosen} APPEND PROPERTY LABELS ${label})
    endif()
    list(FILTER chosen INCLUDE REGEX "^unit/")
    if("${label}" STREQUAL "threads" AND chosen)
      foreach(test ${chosen})
        string(REGEX REPLACE "^unit/" "" name ${test})
        foreach(program test_${name} ${name})
          if(TARGET ${program})
            add_dependencies(threads-programs ${program})
          endif()
        endforeach()
      endforeach()
    endif()
  endforeach()
endfunction()
