# What `cmake --install` puts into a tree of its own: the library, both headers, the program, and what find_package and
# pkg-config need. All paths are relative, so that the tree can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS packjit_shared EXPORT packjitTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/packjit" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(TARGETS packjit RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/packjit")
install(EXPORT packjitTargets NAMESPACE packjit:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/packjitConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/packjitConfig.cmake" INSTALL_DESTINATION "${package_dir}")
# Before 1.0 a new minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/packjitConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/packjitConfig.cmake" "${PROJECT_BINARY_DIR}/packjitConfigVersion.cmake"
  DESTINATION "${package_dir}")

file(RELATIVE_PATH to_prefix "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
configure_file("${PROJECT_SOURCE_DIR}/cmake/packjit.pc.in" "${PROJECT_BINARY_DIR}/packjit.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/packjit.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

# Of a Python wheel the library alone, under the name by which programs know it: wheels hold no links.
install(FILES $<TARGET_FILE:packjit_shared> RENAME $<TARGET_SONAME_FILE_NAME:packjit_shared> DESTINATION packjit
  COMPONENT python EXCLUDE_FROM_ALL)
