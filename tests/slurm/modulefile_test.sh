#!/bin/bash
# modulefile_test.sh BUILD SENTENCE: the modulefile under whichever module system is installed, Lmod or environment-modules.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
for init in /usr/share/lmod/lmod/init/bash /usr/share/modules/init/bash ''; do [ ! -r "$init" ] || break; done
[ -n "$init" ] || { echo 'SKIPPED: no module system here; install lmod or environment-modules' >&2; exit 77; }
unset CIFAR_MPI_ROOT CIFAR_MPI_BIN CIFAR_MPI_DATA
PATH=/usr/bin:/bin  # short, because Lmod removes repetitions
set +eu  # the scripts of the module systems fail under both
# shellcheck disable=SC1090
. "$init"

fail() { echo "FAILED under $init: $*" >&2; exit 1; }
is() { [ "$2" = "$3" ] || fail "$1 is '$2', not '$3'"; }

loads_from() {  # loads_from MODULE_FOLDER
  local path=$PATH
  module use "$1"
  module load cifar_mpi
  is CIFAR_MPI_ROOT "$CIFAR_MPI_ROOT" "$root"
  is CIFAR_MPI_BIN "$CIFAR_MPI_BIN" "$root/build"
  is CIFAR_MPI_DATA "$CIFAR_MPI_DATA" "$root/data/cifar10.h5"
  is PATH "$PATH" "$root/build:$path"
  module unload cifar_mpi
  is 'CIFAR_MPI_ROOT afterwards' "${CIFAR_MPI_ROOT-unset}" unset
  is 'PATH afterwards' "$PATH" "$path"
}

SaysWhereTheCheckoutIs() { loads_from "$root/env/modulefiles"; }

FollowsALinkFromTheClustersOwnFolder() {
  mkdir "$here/cifar_mpi"
  ln -s "$root/env/modulefiles/cifar_mpi" "$here/cifar_mpi/any_version"
  loads_from "$here"
}

"$2"
