# Finds the libraries. Each one is used by one module only (see src/CMakeLists.txt). Those missing are listed at the end: for
# the reader, and by the names of env/build_deps.sh, which builds the small ones.

set(CIFAR_MPI_MISSING)
set(CIFAR_MPI_MISSING_TEXT)
# cifar_mpi_need(NAME TEXT CONDITION...): unless CONDITION holds, NAME is missing; TEXT says what it is and what provides it.
macro(cifar_mpi_need name text)
  if(${ARGN})
  else()
    list(APPEND CIFAR_MPI_MISSING ${name})
    string(APPEND CIFAR_MPI_MISSING_TEXT "\n  ${text}")
  endif()
endmacro()

find_package(Threads REQUIRED)
find_package(MPI COMPONENTS C)
cifar_mpi_need(mpi "MPI (mpicc, mpi.h): load the cluster's MPI module; on Debian and Ubuntu install libopenmpi-dev" MPI_C_FOUND)
# FindHDF5 reads HDF5_PREFER_PARALLEL; the serial library is enough: only rank 0 writes.
find_package(HDF5 COMPONENTS C)
cifar_mpi_need(hdf5 "HDF5 (hdf5.h, libhdf5): load the cluster's HDF5 module; on Debian and Ubuntu install libhdf5-dev" HDF5_FOUND)
find_package(CLI11 QUIET)
cifar_mpi_need(cli11 "CLI11: run env/build_deps.sh; on Debian and Ubuntu install libcli11-dev" CLI11_FOUND)
find_package(fmt QUIET)
cifar_mpi_need(fmt "fmt: run env/build_deps.sh; on Debian and Ubuntu install libfmt-dev" fmt_FOUND)
# Without these libraries cifar_mpi_pack refuses such images.
find_package(PNG)
find_package(JPEG)

# toml++ is header-only; not every package of it has CMake files.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(TOMLPLUSPLUS QUIET tomlplusplus)
endif()
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h HINTS ${TOMLPLUSPLUS_INCLUDE_DIRS})
cifar_mpi_need(tomlplusplus "toml++ (toml++/toml.h): run env/build_deps.sh; on Debian and Ubuntu install libtomlplusplus-dev"
               TOMLPLUSPLUS_INCLUDE_DIR)
add_library(toml_system INTERFACE)
target_include_directories(toml_system SYSTEM INTERFACE ${TOMLPLUSPLUS_INCLUDE_DIR})

if(CIFAR_MPI_TESTS)
  find_package(GTest QUIET)
  cifar_mpi_need(googletest "GoogleTest, for the tests alone: pass -DCIFAR_MPI_TESTS=OFF, or run env/build_deps.sh googletest; \
on Debian and Ubuntu install libgtest-dev" GTest_FOUND)
endif()

# oneDNN: Debian 12's own CMake package asks for OpenCL, so look for the header and the library.
set(CIFAR_MPI_HAVE_CPU OFF)
set(onednn "oneDNN (oneapi/dnnl/dnnl.hpp, libdnnl) for the CPU backend, and OpenMP, which comes with the compiler: load the \
cluster's module or run env/build_deps.sh onednn; on Debian and Ubuntu install libdnnl-dev")
if(NOT CIFAR_MPI_CPU STREQUAL "OFF")
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl)
  find_package(OpenMP COMPONENTS CXX)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY AND OpenMP_CXX_FOUND)
    set(CIFAR_MPI_HAVE_CPU ON)
    add_library(dnnl_system INTERFACE)
    target_include_directories(dnnl_system SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
    # the last two for a static oneDNN on systems where they are no part of the C library
    target_link_libraries(dnnl_system INTERFACE ${DNNL_LIBRARY} OpenMP::OpenMP_CXX Threads::Threads ${CMAKE_DL_LIBS})
  elseif(CIFAR_MPI_CPU STREQUAL "ON")
    cifar_mpi_need(onednn "${onednn} (CIFAR_MPI_CPU=ON)" OFF)
  endif()
endif()
include(Cuda)
if(NOT CIFAR_MPI_CPU STREQUAL "ON")
  cifar_mpi_need(onednn "${onednn}; or, for GPUs, the CUDA toolkit, cuDNN 9 and NCCL (${CIFAR_MPI_CUDA_MISSING})"
                 CIFAR_MPI_HAVE_CPU OR CIFAR_MPI_HAVE_CUDA)
endif()
if(CIFAR_MPI_MISSING)
  list(JOIN CIFAR_MPI_MISSING " " missing)
  message(STATUS "Missing: ${missing}")
  message(FATAL_ERROR "These were not found:${CIFAR_MPI_MISSING_TEXT}\nLibraries outside the system's folders are found in the "
                      "prefixes named in CMAKE_PREFIX_PATH.")
endif()
