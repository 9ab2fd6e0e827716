#!/bin/bash
# smoke_test.sh: tests an installed tree in seconds; needs no dataset and no launcher.
#
# Prints what the programs were built with, then packs generated images, trains 20 steps, evaluates and makes the report. The
# programs are those of the tree that this file lies in, or of $CIFAR_MPI_BIN. Leaves no file. Exit status: that of the step
# that failed.
set -euo pipefail
prefix=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
bin=${CIFAR_MPI_BIN:-$prefix/bin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=env/mpirun.sh
. "$(dirname "${BASH_SOURCE[0]}")/mpirun.sh"
# shellcheck source=env/one_machine.sh
. "$(dirname "${BASH_SOURCE[0]}")/one_machine.sh"
"$bin/cifar_mpi_train" --check-build
"$bin/cifar_mpi_pack" --synthetic 640 --out "$work/set.h5"
"$bin/cifar_mpi_train" --data "$work/set.h5" --run-dir "$work/run" --batch-size 32 --steps 20
"$bin/cifar_mpi_eval" "$work/run" --data "$work/set.h5"
"$bin/cifar_mpi_report" "$work/run"
