#!/bin/bash
# shellcheck disable=SC2013,SC2016  # words without blanks; text for another shell
# install_test.sh BUILD SENTENCE: the files that BUILD and the packages install.
set -euo pipefail
build=$1
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
export OMP_NUM_THREADS=1

# With a component the list of files has another name than a full installation's, which uninstalling needs.
install_at() { ends_with 0 cmake --install "$build" --component Unspecified --prefix "$1"; }

RunsAfterItWasMoved() {
  install_at "$here/first"
  mkdir 'a folder'
  mv first 'a folder/moved'
  local prefix="$here/a folder/moved" share="$here/a folder/moved/share/cifar_mpi"
  ends_with 0 ctest --test-dir "$share" --no-tests=error -V
  says 'oneDNN'
  says 'step 20'
  says 'precision @ 1 = '
  holds_only "$prefix/bin" cifar_mpi_bench cifar_mpi_eval cifar_mpi_pack cifar_mpi_report cifar_mpi_train
  cmp "$root/LICENSE" "$share/LICENSE" || fail "the licence differs"
  ends_with 0 bash -c 'root=$1; . "$root/env/site.sh"; echo "bin=$CIFAR_MPI_BIN"' - "$share"
  says "bin=$prefix/bin"
}

# Every link between installed pages works; the job files find the files that they source.
BringsWhatItsPagesAndJobFilesName() {
  install_at "$here/tree"
  local share=$here/tree/share/cifar_mpi page link file
  while read -r page; do
    while read -r link; do
      [ -e "$(dirname "$page")/$link" ] || fail "$page links to $link, which is not installed"
    done < <(grep -oE '\]\([^):# ]+\.(md|svg)' "$page" | cut -c3-)
  done < <(find "$share" -name '*.md')
  if command -v python3 >/dev/null; then
    ends_with 0 "$share/tools/study" --nodes 1 --parts nodes --rounds 2 --seconds 0.01 --batch-size 2 --threads 1
    grep -qF "$here/tree/bin/cifar_mpi_bench" study/raw.jsonl || fail "the study ran other programs: $(cat study/raw.jsonl)"
    grep -q ':root {' study/study.html || fail "the page of the study has no style"
    [ -x "$share/tools/study_energy.py" ] || fail "study_energy.py cannot be started"
    ends_with 0 "$here/tree/bin/cifar_mpi_pack" --synthetic 64 --out set.h5
    ends_with 0 "$share/tools/accuracy" --recipe tutorial --seeds 1 --data set.h5 --train '--batch-size 8 --steps 2 --threads 1'
    says 'mean of 1: '
  fi
  for file in $(grep -ohE '\$root/(jobs|env)/[a-z_]+\.sh' "$share"/jobs/*.slurm "$share"/*/*.sh | sort -u); do
    [ -r "$share/${file#*/}" ] || fail "the job files source $file, which is not installed"
  done
}

# The files of the image are enough for the configuration of its %post.
TheContainerHasTheFilesThatItBuildsFrom() {
  local from to
  while read -r from to; do
    [ "$to" = "/opt/cifar_mpi/$from" ] || fail "%files puts $from at $to"
    mkdir -p "source/$(dirname "$from")"
    cp -r "$root/$from" "source/$from"
  done < <(sed -n '/^%files/,/^%post/{/^    /p}' "$root/env/apptainer.def")
  sed -n '/^%post/,/^%runscript/{/^    /p}' "$root/env/apptainer.def" >post
  ends_with 0 bash -n post
  # shellcheck disable=SC2046  # words of the command
  ends_with 0 $(sed -n 's/^ *\(cmake -S .*\)/\1/p' post | sed 's| -S \. | -S source |') -DCIFAR_MPI_CUDA=OFF
  says 'Build files have been written'
  local folder
  for folder in $(grep -oE -- "-I$here/source/[a-z]+" build/compile_commands.json | sort -u); do
    [ -d "${folder#-I}" ] || fail "%files lacks ${folder##*/}, which headers are included from"
  done
}

# The recipe's settings are those of CMakeLists.txt, except those for developers; runs it with a stand-in for Spack.
TheSpackRecipeGivesTheOptionsOfCMake() {
  command -v python3 >/dev/null || { echo "skipped: there is no python3 here"; exit 77; }
  ends_with 0 python3 "$root/tests/tools/spack_stand_in.py" "$root/env/spack/spack_repo/cifar_mpi/packages/cifar_mpi/package.py"
  sed -n 's/^define \(CIFAR_MPI_[A-Z]*\) .*/\1/p' said | sort -u >given
  { grep -ohE '^(option|set)\(CIFAR_MPI_[A-Z]+ .*' "$root/CMakeLists.txt" | grep -E '^option|CACHE' |
    sed 's/^[a-z]*(\([A-Z_]*\) .*/\1/' | grep -vxE 'CIFAR_MPI_(WERROR|SANITIZE)' | sort -u; } >wanted
  cmp -s given wanted || fail "the recipe gives $(tr '\n' ' ' <given), CMakeLists.txt has $(tr '\n' ' ' <wanted)"
  # the packages that CMake requires, under Spack's names
  local pair
  for pair in MPI:mpi HDF5:hdf5 CLI11:cli11 fmt:fmt PNG:libpng JPEG:jpeg PkgConfig:pkgconfig; do
    grep -q "^find_package(${pair%:*}[ )]" "$root/env/cmake/Dependencies.cmake" || fail "CMake does not look for ${pair%:*}"
    grep -qE "^depends_on ${pair#*:}(@|$| )" said || fail "the recipe lacks ${pair#*:}"
  done
  [ "$(grep -c '^find_package(' "$root/env/cmake/Dependencies.cmake")" = 8 ] || fail "CMake looks for another package"
}

"$2"
