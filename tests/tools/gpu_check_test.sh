#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

# Everything that gpu_check starts, as stand-ins that say what they would say if all was well; `calls` lists them.
folder=$here/build
mkdir -p "$folder/tests"
export calls=$here/calls
touch "$calls"
stand_in() { { echo '#!/bin/bash'; echo 'echo "${0##*/} $*" >>"$calls"'; cat; } >"$1"; chmod +x "$1"; }
stand_in "$fake/nvidia-smi" <<<'case "$*" in *compute_cap*) echo 9.0 ;; *name*) echo "A GPU, 580.1" ;; esac'
stand_in "$fake/cmake" <<<'[ "$1" = --build ] || touch "${4:?}/CMakeCache.txt"; echo "[1/1] Building"; [ ! -e "$calls.broken" ]'
stand_in "$fake/mpirun" <<<'shift 2; "$@"'
stand_in "$fake/compute-sanitizer" <<<'exit 0'
for program in cifar_mpi_train cifar_mpi_eval cifar_mpi_pack tests/test_cuda tests/test_cuda_device tests/test_cuda_ranks; do
  stand_in "$folder/$program" <<<'exit 0'
done
stand_in "$folder/cifar_mpi_train" <<'END'
echo '2026-11-20: step 15600, loss = 0.9 (900000.0 examples/sec; 0.000 sec/batch)'
echo 'test accuracy 0.8000'
END
stand_in "$folder/cifar_mpi_bench" <<'END'
[ "$1" = allreduce ] || printf '%s\n' 'cuda: A GPU, bf16, 1 rank, batch 128 per rank' '      least   median    most' \
  'us per step   90.0  91.0  92.0' 'share of the floor: 50.0 %   (50.0 to 50.0)' '  conv1 forward  10.0'
[ "$1" != allreduce ] || printf '%s\n' '  4096 bytes, 5 runs of 1' '  min us  median us' '  9.0 10.0 nccl'
END
gpu_check=("$root/tools/gpu_check" --build "$folder")

ExplainsItself() {
  ends_with 0 "$root/tools/gpu_check" --help
  says '--quick'
  says 'Exit status'
  ends_with 2 "$root/tools/gpu_check" --fast
  says "unknown option '--fast'"
  ends_with 2 "$root/tools/gpu_check" --steps
}

SaysThatThereIsNoGpu() {
  stand_in "$fake/nvidia-smi" <<<'exit 9'
  ends_with 77 "${gpu_check[@]}"
  says 'NO GPU: nothing was checked'
  ! grep -q cmake "$calls" || fail 'built all the same'
}

EndsWithATable() {
  touch data.h5
  echo images >data.h5
  ends_with 0 "${gpu_check[@]}" --data "$PWD/data.h5" --steps 200
  says '== gpu_check on A GPU, 580.1'
  for row in 'build  ' 'kernels  ' 'networks and runners  ' 'NCCL, 4 ranks on one GPU  ' 'step benchmark  ' \
    '10 steps in one launch  ' 'NCCL beside a device copy  ' 'a short run  ' 'that run resumed  ' \
    'compute-sanitizer memcheck  ' 'compute-sanitizer racecheck  ' 'training, 200 steps  '; do
    grep -qE "^$row +ok +[0-9]+ s" said || fail "no row that says ok: $row"
  done
  says '  us per step   90.0  91.0  92.0'
  says '  share of the floor: 50.0 %'
  says '  test accuracy 0.8000'
  says_not 'conv1 forward'
  grep -q 'cmake .*-DCMAKE_CUDA_ARCHITECTURES=90' "$calls" || fail "built for: $(grep cmake "$calls")"
  grep -q 'cifar_mpi_train .*--device cuda .*--steps 200' "$calls" || fail "trained: $(grep train "$calls")"
}

LeavesOutTheLongPartsWhenAskedTo() {
  ends_with 0 "${gpu_check[@]}" --quick --data "$PWD/none.h5"
  says_not compute-sanitizer
  says_not training
  grep -q 'cifar_mpi_pack --synthetic' "$calls" || fail 'made no images for the short run'
}

GoesOnBehindAFailureAndEndsWithIt() {
  stand_in "$folder/tests/test_cuda_ranks" <<<'echo "sums are wrong"; exit 1'
  ends_with 1 "${gpu_check[@]}" --quick
  says 'NCCL, 2 ranks on one GPU failed:'
  says 'sums are wrong'
  grep -qE '^NCCL, 2 ranks on one GPU +FAILED +status 1 after' said || fail 'the failure is no row'
  grep -qE '^step benchmark +ok' said || fail 'it did not go on'
}

StopsWhereItDoesNotBuild() {
  touch "$calls.broken"
  ends_with 1 "${gpu_check[@]}"
  grep -qE '^build +FAILED' said || fail 'no row'
  ! grep -q test_cuda "$calls" || fail 'ran what was not built'
}

WaitsForWhatItHasToEnd() {
  # timeout stands in for itself, with a limit of a second
  real=$(command -v timeout)
  printf '#!/bin/bash\nshift 2\nexec %q --kill-after=20 1 "$@"\n' "$real" >"$fake/timeout"
  chmod +x "$fake/timeout"
  stand_in "$folder/cifar_mpi_train" <<<'trap "sleep 1; echo left >>\"$calls\"; exit 0" TERM; while :; do sleep 0.1; done'
  ends_with 1 "${gpu_check[@]}" --quick
  grep -qE '^a short run +FAILED +status 124' said || fail 'it had time'
  [ "$(grep -c left "$calls")" = 2 ] || fail "it went on before the run had ended: $(cat "$calls")"
}

"$1"
