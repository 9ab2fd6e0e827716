#!/bin/bash
# real_cifar10.sh BUILD_FOLDER: trains 4 epochs of real CIFAR-10 on two ranks and demands 55 % test accuracy of the averages.
#
# Measured: 59.6 % after 780 steps of the global batch 256, 50.6 to 50.9 % after half of them; 55 is between, far from
# both in units of the spread over seeds (0.3). Exit status 77 (skipped) only when no source of CIFAR-10 answers.
set -euo pipefail
# shellcheck source=tools/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../tools/lib.sh"
build=$(realpath "$1")

if [ -n "${CIFAR_MPI_DATA-}" ] && [ -e "$CIFAR_MPI_DATA" ]; then
  dataset=$CIFAR_MPI_DATA
else
  made=0
  make_dataset || made=$?
  if [ "$made" = 69 ]; then
    echo "SKIPPED: no source of CIFAR-10 answers, so NOTHING was trained on real data. Give it with tools/fetch_cifar10 --from."
    exit 77
  fi
  [ "$made" = 0 ] || { echo "FAILED: the dataset could not be made, status $made"; exit "$made"; }
fi
run=$(mktemp -d)
trap 'rm -rf "$run"' EXIT
run_ranks 2 "$build/cifar_mpi_train" --data "$dataset" --run-dir "$run/run" --batch-size 128 --epochs 4 --threads 1 --log-every 100
result=$(run_ranks 2 "$build/cifar_mpi_eval" "$run/run" --data "$dataset" --threads 1)
printf '%s\n' "$result"
sed -n 's/.*precision @ 1 = \([0-9.]*\).*/\1/p' <<<"$result" |
  awk '{ accuracy = $1 } END { if (accuracy >= 0.55) exit 0; print "FAILED: accuracy " accuracy " is below 0.55"; exit 1 }'
