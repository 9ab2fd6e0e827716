#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

install=$root/env/install_deps.sh
asked=$here/asked
fake_program apt-get <<<'echo "$@" >>'"$asked"
fake_program id <<<'echo 0'
everything_but() {  # everything_but PACKAGE: dpkg-query has all packages but this one
  fake_program dpkg-query <<<'for p; do case $p in -*|*" "*|'"$1"') ;; *) echo "$p installed" ;; esac; done; exit 1'
}

AsksForNothingWhenAllIsThere() {
  everything_but none
  ends_with 0 "$install"
  ends_with 0 "$install" --check
  [ ! -e "$asked" ] || fail "apt-get was called"
}

ReportsWithoutInstalling() {
  everything_but libdnnl-dev
  ends_with 1 "$install" --check
  says 'libdnnl-dev      oneDNN'
  says_not ninja-build
  [ ! -e "$asked" ] || fail "apt-get was called"
}

InstallsExactlyWhatIsMissing() {
  everything_but g++
  ends_with 0 "$install"
  grep -q ' update$' "$asked" || fail "apt-get update was not called"
  grep -q -- ' install -y --no-install-recommends g++$' "$asked" || fail "apt-get was asked: $(cat "$asked")"
}

InstallsTheNamedPackages() {
  everything_but npm
  ends_with 0 "$install" npm curl
  grep -q -- '--no-install-recommends npm$' "$asked" || fail "apt-get was asked: $(cat "$asked")"
}

InstallsAClusterOnlyWhenAsked() {
  everything_but slurmctld
  ends_with 0 "$install"
  [ ! -e "$asked" ] || fail "apt-get was called"
  ends_with 1 "$install" --slurm --check
  says 'slurmctld'
  ends_with 0 "$install" --slurm
  grep -q -- '--no-install-recommends slurmctld$' "$asked" || fail "apt-get was asked: $(cat "$asked")"
}

ShowsWhatAptSaidWhenItFails() {
  everything_but cmake
  fake_program apt-get <<<'echo E: Unable to locate it; exit 100'
  ends_with 69 "$install"
  says 'E: Unable to locate it'
  says 'cmake            build system'
}

NamesWhatIsNeededWithoutRoot() {
  everything_but cmake
  fake_program id <<<'echo 1000'
  fake_program sudo <<<'exit 1'
  ends_with 69 "$install"
  says "sudo $install"
  says 'cmake            build system'
  [ ! -e "$asked" ] || fail "apt-get was called"
}

UsesSudoWhereItAsksForNoPassword() {
  everything_but cmake
  fake_program id <<<'echo 1000'
  fake_program sudo <<<'[ "$1" = -n ] && shift && by_sudo=1 exec "$@"'
  fake_program apt-get <<<'[ -z "$by_sudo" ] || echo "$@" >>'"$asked"
  ends_with 0 "$install"
  grep -q -- '--no-install-recommends cmake$' "$asked" || fail "apt-get was asked: $(cat "$asked")"
}

NamesEverythingOnOtherSystems() {
  rm "$fake/apt-get"
  for tool in sed cut rm; do ln -s "$(command -v "$tool")" "$fake/"; done
  PATH=$fake ends_with 69 /bin/bash "$install"
  says 'libdnnl-dev      oneDNN'
  says 'CIFAR_MPI_NO_INSTALL=1'
}

"$1"
