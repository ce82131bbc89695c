# Installs what depends on the prefix: the service's unit, which names the daemon and its configuration, and the configuration.
# A configuration that an operator has edited is left alone. The caller sets SOURCE, UNITDIR,
# CMAKE_INSTALL_SBINDIR, CMAKE_INSTALL_BINDIR, CMAKE_INSTALL_SYSCONFDIR and UNITS: those to install.
include("${SOURCE}/paths.cmake")
gpupool_paths("${CMAKE_INSTALL_PREFIX}")

cmake_path(ABSOLUTE_PATH UNITDIR NORMALIZE OUTPUT_VARIABLE unit) # the prefix may be relative to the caller's folder
foreach(name IN LISTS UNITS)
  configure_file("${SOURCE}/${name}.in" "$ENV{DESTDIR}${unit}/${name}" @ONLY
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  message(STATUS "Installing: $ENV{DESTDIR}${unit}/${name}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${unit}/${name}")
endforeach()

if(EXISTS "$ENV{DESTDIR}${GPUPOOL_CONFIG_FILE}")
  message(STATUS "Kept: $ENV{DESTDIR}${GPUPOOL_CONFIG_FILE}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${GPUPOOL_CONFIG_FILE}")
else()
  cmake_path(GET GPUPOOL_CONFIG_FILE PARENT_PATH directory)
  file(INSTALL DESTINATION "${directory}" TYPE FILE FILES "${SOURCE}/gpupoold.conf")
endif()
