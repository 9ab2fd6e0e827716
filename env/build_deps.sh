#!/bin/bash
# build_deps.sh [OPTION...] [NAME...]: builds the missing small libraries from source, without root.
#
# The compiler, CMake, MPI, HDF5, and for GPUs CUDA, cuDNN and NCCL come from the system or from modules. If CMake finds no CLI11,
# fmt or toml++, they are built, and also oneDNN if neither oneDNN nor CUDA is found. Safe to rerun: resumes an interrupted build.
#   --prefix DIR    install here; default: deps in the checkout
#   --deps DIR      take the archives from this folder and use no network
#   --download DIR  only download the archives, for --deps on another machine
#   NAME...         also build these if they are missing: onednn, googletest
# Environment: CXX, CMAKE_PREFIX_PATH, CMAKE_BUILD_PARALLEL_LEVEL (compilers at once, default: the number of cores)
# Exit status: 0 nothing is missing, 2 usage, 3 an archive is missing or damaged, 5 the prefix cannot be written, 69 the compiler, CMake,
# MPI, HDF5 or the network is missing, 1 a build failed.
set -euo pipefail

# name, version, archive, SHA-256, source. If a name has several archives, the first that is present is used;
# only the first is downloaded. Debian's archives lack files that upstream's have besides the library, and have other checksums.
archives='cli11 2.1.2 CLI11-2.1.2.tar.gz 26291377e892ba0e5b4972cdfd4a2ab3bf53af8dac1f4ea8fe0d1376b625c8cb https://github.com/CLIUtils/CLI11/archive/v2.1.2.tar.gz
cli11 2.1.2 cli11_2.1.2+ds.orig.tar.xz 8143d20b688e98ccce8e24562d3b68e5f47c12e896c42c7ca8553dbde5bed55d Debian
fmt 9.1.0 fmt-9.1.0.tar.gz 5dea48d1fcddc3ec571ce2058e13910a0d4a6bab4cc09a809d8b1dd1c88ae6f2 https://github.com/fmtlib/fmt/archive/9.1.0.tar.gz
fmt 9.1.0 fmtlib_9.1.0+ds1.orig.tar.gz 84ce1c2d0be3a9863935137969dcec6970125caac032f82474640bfc81463583 Debian
tomlplusplus 3.4.0 tomlplusplus-3.4.0.tar.gz 8517f65938a4faae9ccf8ebb36631a38c1cadfb5efa85d9a72e15b9e97d25155 https://github.com/marzer/tomlplusplus/archive/v3.4.0.tar.gz
tomlplusplus 3.4.0 libtomlplusplus-dev_3.4.0+ds-0.2+b1_amd64.deb 6ac49497e65099c994a7c40b797c21627f81c9837b769ef08433e9cf41164aa1 Debian
onednn 3.7.3 oneDNN-3.7.3.tar.gz 071f289dc961b43a3b7c8cbe8a305290a7c5d308ec4b2f586397749abdc88296 https://github.com/oneapi-src/oneDNN/archive/refs/tags/v3.7.3.tar.gz
onednn 3.7.2 onednn_3.7.2+ds.orig.tar.xz 0cc51ca26c1af6a2bb1e71e378e7046f3ceb3e71791ee9d4e246d50f904a6ea6 Debian
googletest 1.12.1 googletest_1.12.1.orig.tar.gz 81964fe578e9bd7c94dfdb09c8e4d6e6759e19967e397dbea48d1c10e45d0df2 https://github.com/google/googletest/archive/release-1.12.1.tar.gz'

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=$root/deps deps='' download='' work=$root/build-deps
say() { printf 'build_deps: %s\n' "$*" >&2; }
die() { local status=$1; shift; say "$@"; exit "$status"; }

while [[ ${1-} == -* ]]; do
  case $1 in
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}"; continue ;;
    --prefix | --deps | --download)
      [ -n "${2-}" ] || die 2 "$1 needs a folder; see --help"
      declare "${1#--}=$(realpath -m -- "$2")"; shift 2 ;;
    *) die 2 "unknown option '$1'; see --help" ;;
  esac
done
for name; do [[ $name =~ ^(onednn|googletest)$ ]] || die 2 "'$name' is neither onednn nor googletest; see --help"; done

sum_of() { sha256sum <"$1" | cut -d' ' -f1; }

# fetch ARCHIVE SUM ADDRESS DIR: downloads to DIR/ARCHIVE, which appears with the right content or not at all.
fetch() {
  [ ! -e "$4/$1" ] || [ "$(sum_of "$4/$1")" != "$2" ] || return 0
  command -v curl >/dev/null || die 69 "downloading $1 needs curl: load or install it, or pass --deps DIR with the archive."
  say "downloading $3"
  curl -sS --proto '=https' --fail --location --connect-timeout 20 --retry 2 --output "$4/$1.part" "$3" ||
    die 69 "$1 could not be downloaded (see above): on a machine with a network run  $0 --download DIR , then pass --deps DIR here."
  [ "$(sum_of "$4/$1.part")" = "$2" ] || die 3 "$4/$1.part, downloaded from $3, does not have the SHA-256 $2, so it was not used."
  mv "$4/$1.part" "$4/$1"
}

# take NAME: sets $archive to a verified archive of NAME, and $version and $sum to its version and SHA-256.
take() {
  local row file source wanted=()
  while read -r row version file sum source; do
    [ "$row" = "$1" ] || continue
    archive=${deps:-$work/archives}/$file
    wanted+=("$file ($source)")
    if [ -n "$deps" ] && [ -e "$archive" ]; then
      [ "$(sum_of "$archive")" = "$sum" ] || die 3 "$archive does not have the SHA-256 $sum: copy it again from $source."
      return
    elif [ -z "$deps" ] && [[ $source == https:* ]]; then
      mkdir -p "$work/archives"
      fetch "$file" "$sum" "$source" "$work/archives"
      return
    fi
  done <<<"$archives"
  local list
  list=$(printf ', or %s' "${wanted[@]}")
  die 3 "$deps lacks the archive of $1: copy ${list:5} there."
}

if [ -n "$download" ]; then
  mkdir -p "$download" || die 5 "the folder $download cannot be created."
  while read -r _ _ file sum source; do
    [[ $source != https:* ]] || fetch "$file" "$sum" "$source" "$download"
  done <<<"$archives"
  say "the archives are in $download"
  exit 0
fi
[ -z "$deps" ] || [ -d "$deps" ] || die 3 "--deps $deps is not a folder: make it with --download on a machine with a network."

check_tools() {
  local version compiler=${CXX:-c++}
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version \([0-9]*\.[0-9]*\).*/\1/p') || true
  [ "$(printf '%s\n' 3.25 "${version:-0}" | sort -V | head -n 1)" = 3.25 ] ||
    die 69 "CMake 3.25 or later is needed, found ${version:-none}: load a module (often named cmake) or install the package cmake."
  command -v "${compiler%% *}" >/dev/null || die 69 "the C++ compiler $compiler was not found: load a module (often named gcc) or" \
    "install the package g++, or name a compiler in CXX."
  $compiler -std=c++20 -fsyntax-only -x c++ - 2>/dev/null <<<'#include <span>
#if defined __GNUC__ && !defined __clang__ && __GNUC__ < 12
#error
#endif' || die 69 "the C++ compiler $compiler does not compile C++20 as GCC 12 does: load or install GCC 12 or later, and name it in CC and CXX."
}

# Lets CMake look for all libraries; sets $missing to the names of those it does not find.
look() {
  local options=(-DCMAKE_PREFIX_PATH="$prefix" -DCIFAR_MPI_TESTS=OFF)
  [[ " $* " != *' googletest '* ]] || options+=(-DCIFAR_MPI_TESTS=ON)
  [[ " $* " != *' onednn '* ]] || options+=(-DCIFAR_MPI_CPU=ON)
  mkdir -p "$work"
  local log=$work/look.log
  if cmake --fresh -S "$root" -B "$work/look" "${options[@]}" >"$log" 2>&1; then
    missing=''
  else
    missing=$(sed -n 's/^-- Missing: //p' "$log")
    [ -n "$missing" ] || { tail -n 20 "$log" >&2; die 1 "CMake failed before it had looked for all libraries; the log is $log"; }
  fi
  rm -rf "$work/look"
  if [[ " $missing " == *' mpi '* || " $missing " == *' hdf5 '* ]]; then
    sed -nE 's/^ +((MPI|HDF5) \(.*)/build_deps: not found: \1/p' "$log" >&2
    exit 69
  fi
}

# prepare_onednn DIR: sets $options for oneDNN with the primitives that src/cpu uses, for all processors. Precompiled headers reduced
# the time of three kernels from 29.8 to 19.7 s.
prepare_onednn() {
  options=(-DONEDNN_LIBRARY_TYPE=STATIC -DONEDNN_CPU_RUNTIME=OMP -DONEDNN_GPU_RUNTIME=NONE -DONEDNN_BUILD_TESTS=OFF
    -DONEDNN_BUILD_EXAMPLES=OFF -DONEDNN_BUILD_GRAPH=OFF -DONEDNN_ENABLE_WORKLOAD=TRAINING
    '-DONEDNN_ENABLE_PRIMITIVE=CONVOLUTION;INNER_PRODUCT;MATMUL;REORDER' -DONEDNN_ENABLE_JIT_PROFILING=OFF
    -DONEDNN_ENABLE_ITT_TASKS=OFF -DCMAKE_PROJECT_INCLUDE="$1/precompile.cmake")
  cat >"$1/precompile.cmake" <<'END'
function(precompile)
  if(TARGET dnnl_cpu_x64)
    target_precompile_headers(dnnl_cpu_x64 PRIVATE <cpu/x64/jit_generator.hpp> <cpu/cpu_convolution_pd.hpp>
                              <cpu/x64/injectors/jit_uni_postops_injector.hpp>)
  endif()
endfunction()
cmake_language(DEFER CALL precompile)
END
}

# build_and_install NAME: builds NAME from $archive and installs it in $prefix. Objects of an interrupted build of this archive are kept.
build_and_install() {
  local at=$work/$1 options=() headers
  if [ "$(cat "$at/sum" 2>/dev/null)" != "$sum" ]; then
    rm -rf "$at"
    mkdir -p "$at/source"
    (cd "$at/source" && cmake -E tar xf "$archive" && if [ -e data.tar.xz ]; then cmake -E tar xf data.tar.xz; fi) || return
    echo "$sum" >"$at/sum"
  fi
  case $1 in
    tomlplusplus)  # headers only
      headers=$(find "$at/source" -type d -path '*/include/toml++' | head -n 1)
      mkdir -p "$prefix/include" && rm -rf "$prefix/include/toml++" && cp -R "$headers" "$prefix/include/" || return
      find "$prefix/include/toml++" -type f >"$at/files"
      ;;
    cli11) options=(-DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF -DCLI11_BUILD_DOCS=OFF) ;;
    fmt) options=(-DFMT_TEST=OFF -DFMT_DOC=OFF) ;;
    onednn) prepare_onednn "$at" ;;
  esac
  if [ ! -e "$at/files" ]; then
    cmake -S "$at/source"/*/ -B "$at/build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
      -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_POLICY_VERSION_MINIMUM=3.5 "${options[@]}" &&
      cmake --build "$at/build" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" &&
      cmake --install "$at/build" || return
    cp "$at/build/install_manifest.txt" "$at/files"
  fi
  mkdir -p "$prefix/share/cifar_mpi" && { cat "$at/files"; echo; } >>"$prefix/share/cifar_mpi/deps.txt" && rm -rf "$at"
}

check_tools
look "$@"
[ -n "$missing" ] || exit 0
probe=$( { mkdir -p "$prefix" && mktemp "$prefix/.write_XXXXXX"; } 2>/dev/null) ||
  die 5 "the prefix $prefix cannot be written: pass a folder of your own with --prefix."
rm -f "$probe"
for name in $missing; do take "$name"; done  # finds all archives before the first is built
for name in $missing; do
  take "$name"
  log=$work/$name.log started=$SECONDS
  say "building $name $version; the log is $log"
  build_and_install "$name" >"$log" 2>&1 || { tail -n 20 "$log" >&2; die 1 "building $name failed; the whole log is $log"; }
  say "built $name $version in $((SECONDS - started)) s"
done
say "everything is in $prefix; CMake finds it with -DCMAKE_PREFIX_PATH=$prefix"
