# Writes OUTPUT from INPUT with the git revision of SOURCE, only when it changed: run by every build, so that a binary never
# names the revision of an earlier one.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12
                OUTPUT_VARIABLE CIFAR_MPI_REVISION OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT CIFAR_MPI_REVISION)
  set(CIFAR_MPI_REVISION unknown)
endif()
configure_file(${INPUT} ${OUTPUT} @ONLY)
