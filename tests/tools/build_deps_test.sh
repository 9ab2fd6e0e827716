#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

# A checkout with the real script, but for the sums of archives that the tests make, and a CMake that notes what it is asked for.
clone="$here/a clone" sources="$here/the archives" prefix="$here/a prefix"
mkdir -p "$clone/env" "$sources" tree/library/include/toml++
touch tree/library/include/toml++/toml.h
script=$clone/env/build_deps.sh
edits=()
for file in CLI11-2.1.2 fmt-9.1.0 tomlplusplus-3.4.0 oneDNN-3.7.3 googletest_1.12.1.orig; do
  echo "$file" >tree/library/name
  tar -C tree -czf "$sources/$file.tar.gz" library
  edits+=(-e "s/ $file\.tar\.gz [0-9a-f]* / $file.tar.gz $(sha256sum <"$sources/$file.tar.gz" | cut -d' ' -f1) /")
done
sed "${edits[@]}" "$root/env/build_deps.sh" >"$script"
chmod +x "$script"
export lacks='' real_cmake
real_cmake=$(command -v cmake)
stand_in "$fake/cmake" <<'END'
case $1 in
  --version) echo "cmake version ${cmake_version:-3.25.1}" ;;
  -E) exec "$real_cmake" "$@" ;;
  --fresh) [ -n "$lacks" ] || exit 0
    echo "-- Missing: $lacks"
    printf 'CMake Error:\n  MPI (mpi.h): load a module\n  HDF5 (hdf5.h): load a module\n  fmt: run a script\n'
    exit 1 ;;
  -S) echo "configures $(cat "$2/name")" >>"$calls"; mkdir -p "$4"; exit "${broken:-0}" ;;
  --install) echo "$lacks of $2" >"$2/install_manifest.txt" ;;
esac
END
stand_in "$fake/curl" <<<'while [ $# -gt 1 ]; do [ "$1" != --output ] || echo other >"$2"; shift; done; exit "${curl_status:-0}"'
stand_in "$fake/compiler" <<<'exit "${compiler_status:-0}"'
export CXX=compiler
built() { sed -n 's/^configures //p' "$calls" | tr '\n' ' '; }

BuildsWhatCMakeDoesNotFindAndNothingElse() {
  lacks='' ends_with 0 "$script" --prefix "$prefix" --deps "$sources"
  [ ! -e "$prefix" ] || fail "made $prefix for nothing"
  lacks='cli11 fmt tomlplusplus onednn' ends_with 0 "$script" --prefix "$prefix" --deps "$sources"
  [ "$(built)" = 'CLI11-2.1.2 fmt-9.1.0 oneDNN-3.7.3 ' ] || fail "built: $(built)"
  [ -e "$prefix/include/toml++/toml.h" ] || fail "there is no toml++"
  grep -q 'toml++/toml.h$' "$prefix/share/cifar_mpi/deps.txt" || fail "toml++ is not in the list of files"
  ! grep -q '^curl' "$calls" || fail "used the network: $(grep curl "$calls")"
  holds_only "$clone/build-deps" cli11.log fmt.log look.log onednn.log tomlplusplus.log
}

BuildsOfOneDnnWhatTheCpuBackendUses() {
  lacks='onednn' broken=1 ends_with 1 "$script" --prefix "$prefix" --deps "$sources"
  local used enabled
  used=$(cat "$root"/src/cpu/*.cpp | grep -oE 'dnnl::(([a-z_]+)_(forward|backward)|matmul|reorder|sum|concat|binary|reduction)' |
    sed 's/dnnl:://; s/_forward//; s/_backward//' | tr "[:lower:]" "[:upper:]" | sort -u | paste -sd ';')
  enabled=$(sed -n 's/.*cmake -S .*DONEDNN_ENABLE_PRIMITIVE=\([A-Z_;]*\).*/\1/p' "$calls")
  [ "$enabled" = "$used" ] || fail "src/cpu uses $used, enabled is $enabled"
}

LooksForTheTestsLibraryAndOneDnnWhenAsked() {
  lacks='' ends_with 0 "$script" --prefix "$prefix"
  grep -q 'cmake --fresh .*-DCIFAR_MPI_TESTS=OFF' "$calls" || fail "looked: $(cat "$calls")"
  ! grep -q 'CIFAR_MPI_CPU' "$calls" || fail "asked for oneDNN: $(cat "$calls")"
  lacks='googletest' ends_with 0 "$script" --prefix "$prefix" --deps "$sources" onednn googletest
  grep -q 'cmake --fresh .*-DCIFAR_MPI_TESTS=ON -DCIFAR_MPI_CPU=ON' "$calls" || fail "looked: $(cat "$calls")"
  [ "$(built)" = 'googletest_1.12.1.orig ' ] || fail "built: $(built)"
}

BuildsFromNoDamagedOrMissingArchive() {
  echo more >>"$sources/fmt-9.1.0.tar.gz"
  lacks='cli11 fmt' ends_with 3 "$script" --prefix "$prefix" --deps "$sources"
  says "$sources/fmt-9.1.0.tar.gz does not have the SHA-256 "
  rm "$sources/fmt-9.1.0.tar.gz"
  lacks='cli11 fmt' ends_with 3 "$script" --prefix "$prefix" --deps "$sources"
  says "$sources lacks the archive of fmt: copy fmt-9.1.0.tar.gz (https://"
  says 'or fmtlib_9.1.0+ds1.orig.tar.gz (Debian) there.'
  [ -z "$(built)" ] || fail "built: $(built)"
  lacks='cli11' ends_with 3 "$script" --prefix "$prefix"
  says 'CLI11-2.1.2.tar.gz.part, downloaded from https://'
  lacks='cli11' curl_status=6 ends_with 69 "$script" --prefix "$prefix"
  says 'CLI11-2.1.2.tar.gz could not be downloaded'
  [ -z "$(built)" ] || fail "built: $(built)"
}

NamesEverythingThatItDoesNotBuild() {
  lacks='mpi hdf5 fmt' ends_with 69 "$script" --prefix "$prefix" --deps "$sources"
  says 'build_deps: not found: MPI (mpi.h): load a module'
  says 'build_deps: not found: HDF5 (hdf5.h): load a module'
  says_not 'fmt: run'
  cmake_version=3.9.2 ends_with 69 "$script"
  says 'CMake 3.25 or later is needed, found 3.9: load a module'
  compiler_status=1 ends_with 69 "$script"
  says 'the C++ compiler compiler does not compile C++20 as GCC 12 does: load'
  CXX=/nowhere/c++ ends_with 69 "$script"
  says 'the C++ compiler /nowhere/c++ was not found'
  ends_with 2 "$script" --prefix="$here/a=b" boost
  says "'boost' is neither onednn nor googletest"
}

# What the script reads is what the project's CMake files print.
CMakeListsAllThatIsMissing() {
  ends_with 1 "$real_cmake" -S "$root" -B build -DCMAKE_CXX_COMPILER=c++ -DCIFAR_MPI_CPU=OFF -DCIFAR_MPI_CUDA=OFF \
    -DCIFAR_MPI_TESTS=ON -DCMAKE_DISABLE_FIND_PACKAGE_{MPI,HDF5,CLI11,fmt,PNG,JPEG,PkgConfig,GTest}=ON -DTOMLPLUSPLUS_INCLUDE_DIR=OFF
  says '-- Missing: mpi hdf5 cli11 fmt tomlplusplus googletest onednn'
  [ "$(grep -cE '^ +(MPI|HDF5) \(.*: load the cluster.s .* module; on Debian and Ubuntu install lib' said)" = 2 ] ||
    fail "MPI and HDF5 are not named on lines of their own"
}

NeedsAPrefixThatCanBeWritten() {
  touch file
  lacks=fmt ends_with 5 "$script" --prefix "$here/file/prefix" --deps "$sources"
  [ "$(cat said)" = "build_deps: the prefix $here/file/prefix cannot be written: pass a folder of your own with --prefix." ] ||
    fail "that is not one sentence"
  [ -z "$(built)" ] || fail "built: $(built)"
}

KeepsTheObjectsOfAnInterruptedBuild() {
  lacks='fmt' broken=1 ends_with 1 "$script" --prefix "$prefix" --deps "$sources"
  says "building fmt failed; the whole log is $clone/build-deps/fmt.log"
  touch "$clone/build-deps/fmt/source/library/object"
  lacks='fmt' broken=1 ends_with 1 "$script" --prefix "$prefix" --deps "$sources"
  [ -e "$clone/build-deps/fmt/source/library/object" ] || fail "unpacked the archive again"
  lacks='fmt' ends_with 0 "$script" --prefix "$prefix" --deps "$sources"
  [ ! -e "$clone/build-deps/fmt" ] || fail "the build is still there"
}

"$1"
