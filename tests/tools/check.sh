# shellcheck shell=bash disable=SC2034
# Sourced by the shell tests: `NAME_test.sh Sentence` runs the function Sentence in an empty folder.
# Programs in $fake come first in PATH; the tests reach no network.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
cd "$here" || exit
fake=$here/fake
mkdir "$fake"
PATH=$fake:$PATH
unset "${!CIFAR_MPI_@}" "${!SLURM_@}"

fail() { printf '%s\nit said: %s\n' "$*" "$(cat said 2>/dev/null)" >&2; exit 1; }

# fake_program NAME: a program whose text comes from standard input.
fake_program() { { echo '#!/bin/bash'; cat; } >"$fake/$1"; chmod +x "$fake/$1"; }

# stand_in PATH: the same for a program that logs each call in the file $calls.
export calls=$fake/.calls
touch "$calls"
stand_in() {
  local text
  IFS= read -rd '' text || true
  printf '%s\n' '#!/bin/bash' 'echo "${0##*/} $*" >>"$calls"' "$text" >"$1"
  chmod +x "$1"
}

# ends_with STATUS COMMAND...: all output of the command goes to the file `said`.
ends_with() {
  local wanted=$1 status=0
  shift
  "$@" >said 2>&1 </dev/null || status=$?
  [ "$status" = "$wanted" ] || fail "expected exit status $wanted, not $status, from: $*"
}

# need_python: skips without python3; else puts the interpreter itself first in PATH. A script that looks for it, as pyenv has,
# takes 0.4 s, and some tests start it a hundred times.
need_python() {
  command -v python3 >/dev/null || { echo 'skipped: there is no python3 here'; exit 77; }
  ln -s "$(python3 -c 'import sys; print(sys.executable)')" "$fake/python3"
}

says() { grep -qF -- "$1" said || fail "expected to read: $1"; }
says_not() { ! grep -qF -- "$1" said || fail "expected not to read: $1"; }

# holds_only DIR NAME...: DIR has exactly these entries, hidden ones included.
holds_only() {
  local dir=$1
  shift
  [ "$(ls -A "$dir")" = "$(printf '%s\n' "$@")" ] || fail "$dir holds: $(ls -A "$dir")"
}
