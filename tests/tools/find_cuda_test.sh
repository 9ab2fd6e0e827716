#!/bin/bash
# env/cmake/CudaLibraries.cmake on made-up installations: nothing here is CUDA but the names.
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
unset CUDACXX CUDA_HOME CUDA_PATH CUDNN_PATH CUDNN_HOME NCCL_HOME VIRTUAL_ENV CONDA_PREFIX CUDAHOSTCXX

cat >find.cmake <<EOF
cmake_minimum_required(VERSION 3.25)
set(CMAKE_FIND_LIBRARY_PREFIXES lib)
set(CMAKE_FIND_LIBRARY_SUFFIXES .so)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
set(CMAKE_BINARY_DIR $here/build)
set(CMAKE_C_COMPILER cc)
set(CMAKE_CXX_COMPILER c++)
include($root/env/cmake/CudaLibraries.cmake)
set(CIFAR_MPI_CUDA_MISSING "")
cifar_mpi_find_cuda()
message("found: \${CIFAR_MPI_CUDA_FOUND}")
message("missing: \${CIFAR_MPI_CUDA_MISSING}")
message("nvcc: \${CIFAR_MPI_NVCC}")
message("libraries: \${CUDNN_LIBRARY} \${NCCL_LIBRARY} \${CUBLASLT_LIBRARY}")
EOF

toolkit() {  # toolkit FOLDER RELEASE: an nvcc
  mkdir -p "$1/bin"
  printf '#!/bin/sh\n[ "$1" != --version ] || echo "Cuda compilation tools, release %s, V%s.1"\n' "$2" "$2" >"$1/bin/nvcc"
  chmod +x "$1/bin/nvcc"
}
library() {  # library FOLDER NAME HEADER [C TEXT]: FOLDER/lib/NAME and FOLDER/include/HEADER
  mkdir -p "$1/lib" "$1/include"
  cc -x c -shared -fPIC -o "$1/lib/$2" - <<<"${4:-int nothing;}"
  : >"$1/include/$3"
}
cudnn() {  # cudnn FOLDER CUDA_MAJOR [NAME]
  library "$1" "${3:-libcudnn.so}" cudnn.h "#include <stddef.h>
size_t cudnnGetCudartVersion(void) { return ${2}010; }"
  printf '#define CUDNN_MAJOR 9\n#define CUDNN_MINOR 19\n#define CUDNN_PATCHLEVEL 0\n' >"$1/include/cudnn_version.h"
}
nccl() {  # nccl FOLDER CUDA_VERSION [NAME]
  library "$1" "${3:-libnccl.so}" nccl.h "const char* version = \"NCCL version 2.28.9+cuda$2\";"
  printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n' >"$1/include/nccl.h"
}
cublaslt() { library "$1" libcublasLt.so cublasLt.h; }
finds() { ends_with 0 cmake -P find.cmake; }

NamesTheVersionsOfWhatItFinds() {
  toolkit cuda 13.0; cudnn cuda 13; nccl cuda 13.0; cublaslt cuda
  CUDA_HOME=$here/cuda finds
  says 'found: CUDA 13.0, cuDNN 9.19, cuBLASLt, NCCL 2.28'
}

TakesTheCompilerThatCudacxxNames() {
  toolkit cuda 13.0; cudnn cuda 13; nccl cuda 13.0; cublaslt cuda
  CUDACXX=$here/cuda/bin/nvcc finds
  says "nvcc: $here/cuda/bin/nvcc"
  says 'found: CUDA 13.0'
}

RefusesLibrariesOfAnotherMajorVersion() {
  toolkit cuda 13.0; cudnn cuda 12; nccl cuda 13.0; cublaslt cuda
  CUDA_HOME=$here/cuda finds
  says "missing: $here/cuda/lib/libcudnn.so is for CUDA 12, but $here/cuda/bin/nvcc is CUDA 13.0; take one for CUDA 13"
  cudnn cuda 13; nccl cuda 12.9
  CUDA_HOME=$here/cuda finds
  says "missing: $here/cuda/lib/libnccl.so is for CUDA 12, but"
}

FindsTheLibrariesOfTheHpcSdk() {
  sdk=$here/hpc_sdk/Linux_x86_64/25.9
  toolkit "$sdk/cuda/13.0" 13.0; cudnn "$sdk/cuda/13.0" 13
  nccl "$sdk/comm_libs/13.0/nccl" 13.0; cublaslt "$sdk/math_libs/13.0"
  mkdir -p "$sdk/compilers/bin"; ln -s ../../cuda/13.0/bin/nvcc "$sdk/compilers/bin/nvcc"
  CUDACXX=$sdk/compilers/bin/nvcc finds
  says 'found: CUDA 13.0'
  says "$sdk/comm_libs/13.0/nccl/lib/libnccl.so $sdk/math_libs/13.0/lib/libcublasLt.so"
}

FindsTheLibrariesOfPythonsWheels() {
  toolkit cuda 13.0; cublaslt cuda
  packages=$here/venv/lib/python3.12/site-packages/nvidia
  cudnn "$packages/cudnn" 13 libcudnn.so.9; nccl "$packages/nccl" 13.0 libnccl.so.2
  VIRTUAL_ENV=$here/venv CUDA_HOME=$here/cuda finds
  says 'found: CUDA 13.0'
  says "$packages/cudnn/lib/libcudnn.so.9 $packages/nccl/lib/libnccl.so.2"
}

SaysWhatIsMissing() {
  toolkit cuda 12.2
  CUDA_HOME=$here/cuda finds
  says "missing: $here/cuda/bin/nvcc is not of CUDA 12.4 or newer"
  toolkit cuda 12.4; cudnn cuda 12
  CUDA_HOME=$here/cuda finds
  says 'missing: nccl.h was not found'
}

"$1"
