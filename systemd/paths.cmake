# The paths of an installation below a prefix. Configuring includes this file for the prefix that it is told. The script that
# installs the unit and the configuration includes it too, because cmake --install --prefix names another prefix.

# gpupool_paths(PREFIX): sets GPUPOOL_DAEMON_FILE, GPUPOOL_EXPORTER_FILE and GPUPOOL_CONFIG_FILE. A folder with a full name stays where it is. Under /usr the
# configuration lies in /etc, and under any other prefix in its etc. config_place_of() of the daemon has the same rule.
function(gpupool_paths prefix)
  cmake_path(ABSOLUTE_PATH prefix NORMALIZE OUTPUT_VARIABLE root)
  set(etc_root ${root})
  if(root MATCHES "^/(usr/?)?$")
    set(etc_root "/")
  endif()
  cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_SBINDIR BASE_DIRECTORY ${root} NORMALIZE OUTPUT_VARIABLE sbin)
  cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_SYSCONFDIR BASE_DIRECTORY ${etc_root} NORMALIZE OUTPUT_VARIABLE etc)
  cmake_path(ABSOLUTE_PATH CMAKE_INSTALL_BINDIR BASE_DIRECTORY ${root} NORMALIZE OUTPUT_VARIABLE bin)
  set(GPUPOOL_DAEMON_FILE "${sbin}/gpupoold" PARENT_SCOPE)
  set(GPUPOOL_EXPORTER_FILE "${bin}/gpupool-exporter" PARENT_SCOPE)
  set(GPUPOOL_CONFIG_FILE "${etc}/gpupool/gpupoold.conf" PARENT_SCOPE)
endfunction()
