# Sets CIFAR_MPI_HAVE_CUDA and defines the target cuda_system where CUDA and its libraries are found, and CIFAR_MPI_BACKENDS to
# one line about what is built. The machine that builds needs no GPU.

include(CudaLibraries)
set(CIFAR_MPI_HAVE_CUDA OFF)
set(CIFAR_MPI_CUDA_MISSING "CIFAR_MPI_CUDA=OFF")

# Ampere and Hopper, and Blackwell if this nvcc supports it; newer GPUs compile the last one's code at start.
function(cifar_mpi_choose_architectures)
  if(DEFINED CMAKE_CUDA_ARCHITECTURES OR DEFINED ENV{CUDAARCHS})
    return()
  endif()
  execute_process(COMMAND ${CIFAR_MPI_NVCC} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  if(known MATCHES "compute_100")
    set(wanted 80-real 90-real 100)
  else()
    set(wanted 80-real 90)
  endif()
  set(CMAKE_CUDA_ARCHITECTURES ${wanted} CACHE STRING "Kinds of GPU that kernels are compiled for")
endfunction()

if(NOT CIFAR_MPI_CUDA STREQUAL "OFF")
  set(CIFAR_MPI_CUDA_MISSING "")
  cifar_mpi_find_cuda()
  if(CIFAR_MPI_CUDA_MISSING)
    if(CIFAR_MPI_CUDA STREQUAL "ON")
      message(FATAL_ERROR "CIFAR_MPI_CUDA=ON, but ${CIFAR_MPI_CUDA_MISSING}; install the CUDA toolkit (12.4 or newer), "
                          "cuDNN 9 and NCCL, or name their folders in CMAKE_PREFIX_PATH")
    endif()
  else()
    cifar_mpi_choose_architectures()
    if(NOT DEFINED CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${CIFAR_MPI_NVCC})
    endif()
    if(NOT CIFAR_MPI_CUDA_HOST STREQUAL "own")
      set(CMAKE_CUDA_HOST_COMPILER ${CIFAR_MPI_CUDA_HOST})
    endif()
    enable_language(CUDA)
    # the C++ compiler links programs, with its own library even if an older compiler made the kernels
    list(FILTER CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES EXCLUDE REGEX "/gcc/")
    # CMake 3.25 does not know that nvcc supports C++20
    foreach(kind STANDARD EXTENSION)
      if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
        set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
      endif()
    endforeach()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    add_library(cuda_headers INTERFACE)
    target_include_directories(cuda_headers SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR}
                                                             ${CUBLASLT_INCLUDE_DIR} ${NCCL_INCLUDE_DIR})
    add_library(cuda_system INTERFACE)
    target_link_libraries(cuda_system INTERFACE cuda_headers ${CUDNN_LIBRARY} cublaslt_on_demand ${NCCL_LIBRARY}
                                                CUDA::cudart_static ${CMAKE_DL_LIBS})
    set(CIFAR_MPI_HAVE_CUDA ON)
  endif()
endif()

# One line at the end of configuring and of every build.
if(CIFAR_MPI_HAVE_CUDA)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", " architectures)
  set(CIFAR_MPI_BACKENDS "GPU backend: ${CIFAR_MPI_CUDA_FOUND}; architectures ${architectures}")
else()
  set(CIFAR_MPI_BACKENDS "GPU backend: not built: ${CIFAR_MPI_CUDA_MISSING}")
endif()
if(NOT CIFAR_MPI_HAVE_CPU)
  string(APPEND CIFAR_MPI_BACKENDS ". CPU backend: not built: no oneDNN or no OpenMP")
endif()
