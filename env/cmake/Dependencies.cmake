# Finds the libraries. Each one is used by one module only (see src/CMakeLists.txt).

find_package(Threads REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
# FindHDF5 reads HDF5_PREFER_PARALLEL; the serial library is enough: only rank 0 writes.
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
# Without these libraries cifar_mpi_pack refuses such images.
find_package(PNG)
find_package(JPEG)

# toml++ is header-only; not every package of it has CMake files.
find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(TOMLPLUSPLUS QUIET tomlplusplus)
endif()
find_path(TOMLPLUSPLUS_INCLUDE_DIR toml++/toml.h HINTS ${TOMLPLUSPLUS_INCLUDE_DIRS})
if(NOT TOMLPLUSPLUS_INCLUDE_DIR)
  message(FATAL_ERROR "toml++ (toml++/toml.h) was not found; on Debian and Ubuntu install libtomlplusplus-dev")
endif()
add_library(toml_system INTERFACE)
target_include_directories(toml_system SYSTEM INTERFACE ${TOMLPLUSPLUS_INCLUDE_DIR})

# oneDNN: Debian 12's own CMake package asks for OpenCL, so look for the header and the library.
set(CIFAR_MPI_HAVE_CPU OFF)
if(NOT CIFAR_MPI_CPU STREQUAL "OFF")
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl)
  find_package(OpenMP COMPONENTS CXX)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY AND OpenMP_CXX_FOUND)
    set(CIFAR_MPI_HAVE_CPU ON)
    add_library(dnnl_system INTERFACE)
    target_include_directories(dnnl_system SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
    target_link_libraries(dnnl_system INTERFACE ${DNNL_LIBRARY} OpenMP::OpenMP_CXX)
  elseif(CIFAR_MPI_CPU STREQUAL "ON")
    message(FATAL_ERROR "CIFAR_MPI_CPU=ON, but oneDNN (oneapi/dnnl/dnnl.hpp, libdnnl) or OpenMP was not found; "
                        "on Debian and Ubuntu install libdnnl-dev")
  endif()
endif()
include(Cuda)
if(NOT CIFAR_MPI_HAVE_CPU AND NOT CIFAR_MPI_HAVE_CUDA)
  message(FATAL_ERROR "No backend: install oneDNN (Debian and Ubuntu: libdnnl-dev) for the CPU, or the CUDA toolkit, "
                      "cuDNN 9 and NCCL for GPUs (${CIFAR_MPI_CUDA_MISSING})")
endif()
