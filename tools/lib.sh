# shellcheck shell=bash
# Shared by quickstart, run_tests and .ci/run; sourced. $root is the checkout, $build the build folder.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build
settings=(-DCMAKE_BUILD_TYPE=Release -DCIFAR_MPI_TESTS=ON ${CI:+-DCIFAR_MPI_WERROR=ON})  # warnings are errors in CI alone
dataset=$root/data/cifar10.h5
fetch_options=()
# shellcheck source=env/mpirun.sh
. "$root/env/mpirun.sh"
# shellcheck source=env/shared_files.sh
. "$root/env/shared_files.sh"

say() { printf '== %s\n' "$*" >&2; }

# packages_help: whether everything is installed as packages or can be.
packages_help() {
  command -v apt-get && command -v dpkg-query &&
    { "$root/env/install_deps.sh" --check || [ "$(id -u)" = 0 ] || sudo -n true; }
} >/dev/null 2>&1

# install_deps [NAME...]: installs packages if root may; else builds the missing small libraries in $prefix, and of onednn and
# googletest those named. A $prefix that exists, an $own_prefix and $deps_options such as --deps DIR ask for the latter.
prefix=$root/deps
deps_options=()
install_deps() {
  if [ -z "${CIFAR_MPI_NO_INSTALL:-}" ]; then
    if [ -z "${deps_options[*]}${own_prefix-}" ] && [ ! -d "$prefix" ] && packages_help; then
      "$root/env/install_deps.sh"
    else
      "$root/env/build_deps.sh" "${deps_options[@]}" --prefix "$prefix" "$@"
      [[ " $* " == *' googletest '* ]] || settings+=(-DCIFAR_MPI_TESTS=OFF)
    fi
  fi
  [ ! -d "$prefix" ] || settings+=(-DCMAKE_PREFIX_PATH="$prefix")
}

# build LOG [TARGET...]: configures with $settings and builds; shows a moving line, or the end of LOG if it fails.
build() {
  local log=$1 restart=() cache=$build/CMakeCache.txt started=$SECONDS generator=Ninja
  shift
  mkdir -p "$build"
  command -v ninja >/dev/null || generator='Unix Makefiles'
  # a checkout that was moved or configured for another build tool cannot be built as it is
  if [ -e "$cache" ] && ! { grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache" &&
    grep -qxF "CMAKE_GENERATOR:INTERNAL=$generator" "$cache"; }; then
    restart=(--fresh)
  fi
  say "building; the log is $log"
  if cmake "${restart[@]}" -S "$root" -B "$build" -G "$generator" "${settings[@]}" >"$log" 2>&1 &&
    cmake --build "$build" -j "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" ${1:+--target "$@"} 2>&1 | tee -a "$log" | show_progress; then
    say "built in $((SECONDS - started)) s"
    [ -z "${CI:-}" ] || [ ! -e "$build/.ninja_log" ] || slowest_files
  else
    tail -n 40 "$log" >&2
    say "the build failed; the whole log is $log"
    return 1
  fi
}

# Prints the first ten lines. Reads the others too: a writer that is cut off would end the script (pipefail).
first_ten() { sed -n 1,10p; }

slowest_files() {
  say "seconds of the ten files that took longest to compile, of all $(($(wc -l <"$build/.ninja_log") - 1)):"
  awk '/\.(o|gch)\t/ { took[$4] = $2 - $1 } END { for (file in took) printf "%7.1f  %s\n", took[file] / 1000, file }' \
    "$build/.ninja_log" | sort -rn | first_ten >&2
}

# run_ctest ARGUMENT...: the tests of $build; returns CTest's status and ends with its summary. With $disturbed, up to five tests that
# failed run again, each alone: other work may have disturbed them. Not those that find faults by chance: one failure is enough.
# With $CI, what took longest comes before the summary.
run_ctest() {
  local log=$build/ctest.log again=$build/ctest_again.log failed=$build/Testing/Temporary/LastTestsFailed.log status=0 summary
  summary=$log
  ctest_without_summary "$log" "$@" || status=$?
  if [ -n "${disturbed-}" ] && [ "$status" = 8 ] && [[ " $* " != *' --'@(repeat|stop-|test-dir)* ]] && grep -q '^[0-9]*% tests passed' "$log" &&
    [ -s "$failed" ] && [ "$(wc -l <"$failed")" -le 5 ] && ! grep -qE ':(Hostile|SmallFile|.*Random)' "$failed"; then
    summary=$again
    say "these tests failed and run again, each alone: $(sed 's/^[0-9]*://' "$failed" | xargs)"
    if ctest_without_summary "$again" "$@" --rerun-failed -j 1; then
      status=0
      say "they passed alone, so the tests pass; CTest's summary of the others: $(grep -m 1 'tests passed,' "$log")"
    fi
  fi
  [ -z "${CI:-}" ] || what_took_longest "$log"
  sed -n '/^[0-9]*% tests passed/,$p' "$summary"
  return "$status"
}

ctest_without_summary() {  # ctest_without_summary LOG ARGUMENT...: LOG has the summary
  ctest --test-dir "$build" --output-on-failure --no-tests=error "${@:2}" | tee "$1" | sed -u '/^[0-9]*% tests passed/,$d'
}

what_took_longest() {  # what_took_longest LOG
  local minutes=$((($(date +%s) - ${CI_STARTED:-$(date +%s)}) / 60))
  say "seconds of the ten tests that took longest:"
  sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: \([^ ]*\) .* \([0-9.]*\) sec *$/\2  \1/p' "$1" | sort -rn | first_ten >&2
  say "$minutes minutes since the start$([ "$minutes" -le 35 ] || echo ': WARNING: the limit is 35 on two quiet cores')"
}

show_progress() {  # the last "[done/all] what" of ninja or "[ 50%] what" of make, on one line of the terminal
  local line moving=''
  [ ! -t 2 ] || moving=1
  while IFS= read -r line; do
    [[ -n $moving && $line == \[*[/%]*\]* ]] && printf '\r\033[K%.100s' "$line" >&2
  done
  [ -z "$moving" ] || printf '\r\033[K' >&2
}

# make_dataset: fetches CIFAR-10 with $fetch_options and packs it into $dataset, unless that exists. Returns 69 if no
# source answers, else the status of the command that failed.
make_dataset() {
  local files=$root/downloads/cifar-10-batches-bin
  [ ! -s "$dataset" ] || return 0
  "$root/tools/fetch_cifar10" --out "$files" --pack "$build/cifar_mpi_pack" "${fetch_options[@]}" || return
  "$build/cifar_mpi_pack" --from "$files" --out "$dataset" --force </dev/null >&2  # appears complete or not at all
}

# run_ranks N PROGRAM [ARG...]: N ranks on this machine, with the mpirun of the MPI that $build uses. A signal asks the
# ranks to stop at the next step and leave a checkpoint, a second one ends them; otherwise mpirun would outlive this script.
# With $own_group mpirun has a process group of its own: the terminal's Ctrl-C would make it kill the ranks after two seconds.
# Ctrl-Z then stops the script alone.
run_ranks() {
  local ranks=$1 mpirun child signalled=1 gently=USR1 status=0
  shift
  mpirun=$(sed -n 's/^MPIEXEC_EXECUTABLE:FILEPATH=//p' "$build/CMakeCache.txt")
  [ -z "${own_group-}" ] || set -m
  (
    [ "$ranks" -le "$(nproc)" ] || export OMPI_MCA_mpi_yield_when_idle=1
    # shellcheck source=env/one_machine.sh
    . "$root/env/one_machine.sh"
    exec "${mpirun:-mpirun}" -np "$ranks" "$@" </dev/null
  ) &
  child=$!
  set +m
  trap 'signalled=1; kill -"$gently" "$child" 2>/dev/null || true; gently=TERM' HUP INT TERM
  while [ -n "$signalled" ]; do  # a signal ends the wait, not the ranks
    signalled=''
    wait "$child" && status=0 || status=$?
  done
  trap - HUP INT TERM
  return "$status"
}
