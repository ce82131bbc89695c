# Installs what depends on the prefix: the service's unit, which names the daemon and its configuration, and the configuration.
# A configuration that an operator has edited is left alone. The caller sets SOURCE, UNITDIR,
# CMAKE_INSTALL_SBINDIR and CMAKE_INSTALL_SYSCONFDIR.
include("${SOURCE}/paths.cmake")
gpupool_paths("${CMAKE_INSTALL_PREFIX}")

cmake_path(ABSOLUTE_PATH UNITDIR NORMALIZE OUTPUT_VARIABLE unit) # the prefix may be relative to the caller's folder
cmake_path(APPEND unit gpupoold.service)
configure_file("${SOURCE}/gpupoold.service.in" "$ENV{DESTDIR}${unit}" @ONLY
  FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
message(STATUS "Installing: $ENV{DESTDIR}${unit}")
list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${unit}")

if(EXISTS "$ENV{DESTDIR}${GPUPOOL_CONFIG_FILE}")
  message(STATUS "Kept: $ENV{DESTDIR}${GPUPOOL_CONFIG_FILE}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${GPUPOOL_CONFIG_FILE}")
else()
  cmake_path(GET GPUPOOL_CONFIG_FILE PARENT_PATH directory)
  file(INSTALL DESTINATION "${directory}" TYPE FILE FILES "${SOURCE}/gpupoold.conf")
endif()
