#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

# Stand-ins for everything that gpu_check starts, with the output of a success; `calls` lists their calls.
folder=$here/build
mkdir -p "$folder/tests"
stand_in "$fake/nvidia-smi" <<<'case "$*" in *compute_cap*) echo 9.0 ;; *name*) echo "A GPU, 580.1" ;; esac'
stand_in "$fake/cmake" <<<'[ "$1" = --build ] || touch "${4:?}/CMakeCache.txt"; echo "[1/1] Building"; [ ! -e "$calls.broken" ]'
stand_in "$fake/mpirun" <<<'shift 2; "$@"'
stand_in "$fake/compute-sanitizer" <<<'exit 0'
for program in cifar_mpi_train cifar_mpi_eval cifar_mpi_pack tests/test_cuda tests/test_cuda_device tests/test_cuda_ranks; do
  stand_in "$folder/$program" <<<'exit 0'
done
stand_in "$folder/cifar_mpi_train" <<'END'
case "$*" in --self-check*) printf '%s\n' '  1 gradients, fp32                  ok        small' 'passed in 1.0 s'; exit 0 ;; esac
echo '2026-11-20: step 15600, loss = 0.9 (900000.0 examples/sec; 0.000 sec/batch)'
echo 'test accuracy 0.8000'
END
stand_in "$folder/cifar_mpi_bench" <<'END'
[ "$1" = allreduce ] || printf '%s\n' 'cuda: A GPU, bf16, 1 rank, batch 128 per rank' '  conv2: cuDNN' \
  '      least   median    most' 'us per step   90.0  91.0  92.0' 'share of the roofline: 50.0 %   (50.0 to 50.0)' \
  '  conv1 forward  10.0'
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
  ends_with 2 "$root/tools/gpu_check" --quick --steps=
  says '--steps needs a value'
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
  for row in 'build  ' 'self-check  ' 'self-check, --model resnet20  ' 'kernels  ' 'networks and runners  ' 'NCCL, 4 ranks on one GPU  ' 'step benchmark  ' \
    '10 steps in one launch  ' 'NCCL during a device copy  ' 'a short run  ' 'that run resumed  ' \
    'compute-sanitizer memcheck  ' 'compute-sanitizer racecheck  ' 'training, 200 steps  '; do
    grep -qE "^$row +ok +[0-9]+ s" said || fail "no row that says ok: $row"
  done
  says '  us per step   90.0  91.0  92.0'
  says '  share of the roofline: 50.0 %'
  says '  passed in 1.0 s'
  says '  conv2: cuDNN'
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

GoesOnAfterAFailureAndEndsWithIt() {
  stand_in "$folder/tests/test_cuda_ranks" <<<'echo "sums are wrong"; exit 1'
  ends_with 1 "${gpu_check[@]}" --quick
  says 'NCCL, 2 ranks on one GPU failed; the end of'
  says 'sums are wrong'
  grep -qE '^NCCL, 2 ranks on one GPU +FAILED +status 1 after' said || fail 'the failure is no row'
  grep -qE '^step benchmark +ok' said || fail 'it did not go on'
}

SaysEachRowAtOnce() {
  # an early end keeps the rows so far
  stand_in "$folder/tests/test_cuda_device" <<<'kill -KILL "$(cat "$calls.pid")"; sleep 1'
  bash -c 'echo $$ >"$calls.pid"; exec "$@"' run "${gpu_check[@]}" >table 2>said </dev/null &&
    fail 'it was not ended'
  grep -qE '^build +ok' said || fail 'no row of what was done'
  grep -qE '^tests without a device +ok' said || fail 'no row of what was done'
  [ ! -s table ] || fail "a table all the same: $(cat table)"
}

PrintsOnlyTheTableOnStandardOutput() {
  "${gpu_check[@]}" --quick --data "$PWD/none.h5" >table 2>said </dev/null
  [ "$(sed -n 2p table)" = '== gpu_check on A GPU, 580.1' ] || fail "it begins: $(head -n 2 table)"
  grep -qE '^step benchmark +ok' table || fail "the table is: $(cat table)"
  says '  us per step   90.0  91.0  92.0'
}

BeginsWithWhatSaysMost() {
  echo images >data.h5
  "${gpu_check[@]}" --data "$PWD/data.h5" >table 2>said </dev/null
  order=$(sed -nE 's/^([^ =].*[^ ]) +ok +[0-9]+ s$/\1/p' table | sed 's/ *$//')
  [ "$order" = "$(printf '%s\n' build self-check 'self-check, --precision fp32' \
    'self-check, --model resnet20' 'tests without a device' kernels 'step benchmark' 'a short run' 'that run resumed' \
    'networks and runners' '10 steps in one launch' 'run of 2 ranks' 'run of 4 ranks' 'run of 8 ranks' 'run of 8 ranks resumed' \
    'run of 8 ranks, local steps' 'run of 8 ranks, two serve all' 'run of 8 ranks, two serve 5' \
    'run of 8 ranks, two serve async' 'NCCL, 1 ranks on one GPU' 'NCCL, 2 ranks on one GPU' \
    'NCCL, 4 ranks on one GPU' 'NCCL during a device copy' 'compute-sanitizer memcheck' 'compute-sanitizer racecheck' \
    'training, 15600 steps')" ] || fail "the order is: $order"
}

RunsTheProgramOnSeveralRanks() {
  stand_in "$fake/mpirun" <<<'echo "btl $OMPI_MCA_btl" >>"$calls"; shift 2; "$@"'
  stand_in "$folder/cifar_mpi_train" <<<'case "$*" in *"--update local"*) echo "ranks differ"; exit 3 ;; esac'
  ends_with 1 "${gpu_check[@]}" --only ranks --data "$PWD/none.h5"
  grep -qE '^run of 8 ranks, local steps +FAILED +status 3' said || fail 'the failure is no row'
  says "the end of $folder/gpu_check/run_of_8_ranks__local_steps.txt:"
  grep -q 'ranks differ' "$folder/gpu_check/run_of_8_ranks__local_steps.txt" || fail 'its output is not kept'
  grep -qE '^run of 8 ranks, two serve async +ok' said || fail 'it did not go on'
  [ "$(grep -cE '^mpirun -np [248] .*--share-gpus' "$calls")" = 8 ] || fail "it ran: $(cat "$calls")"
  [ "$(grep -c 'mpirun -np 8 .*ranks8 .*--summary-every 3' "$calls")" = 2 ] || fail 'the run of 8 ranks is not resumed'
  [ "$(grep '^btl' "$calls" | sort -u)" = 'btl ^tcp,uct,ofi,openib' ] || fail 'Open MPI opens drivers of networks'
}

RunsProgramsThatWereBuiltElsewhere() {
  ends_with 0 "${gpu_check[@]}" --no-build --only kernels
  ! grep -q '^cmake' "$calls" || fail 'built all the same'
  grep -qE '^kernels +ok' said || fail 'did not check them'
  rm "$folder/tests/test_cuda_ranks"
  ends_with 2 "${gpu_check[@]}" --no-build --only kernels
  says "there is no $folder/tests/test_cuda_ranks"
}

RunsThePartsThatAreAskedFor() {
  ends_with 0 "${gpu_check[@]}" --only build
  [ "$(grep -cvE '^(cmake|nvidia-smi)' "$calls")" = 0 ] || fail "it also ran: $(cat "$calls")"
  ends_with 0 "${gpu_check[@]}" --only nccl,kernels --data "$PWD/none.h5"
  [ "$(sed -n '/^== gpu_check/,$p' said | grep -cE ' ok ')" = 7 ] || fail 'other rows'
  for row in build kernels 'NCCL, 4 ranks on one GPU' 'NCCL during a device copy'; do
    grep -qE "^$row +ok" said || fail "no row: $row"
  done
  ends_with 0 "${gpu_check[@]}" --only training --data "$PWD/none.h5"
  grep -qE '^training +skipped' said || fail 'no row that says why not'
  ends_with 2 "${gpu_check[@]}" --only kernels,speed
  says '--only speed is not one of: build self-check kernels bench'
}

NamesTestsThatExist() {  # gtest ignores a pattern without a match
  local pattern name
  grep -o '\(Of/\)\?Cuda[A-Z][A-Za-z]*\.[A-Z]\?[A-Za-z]*' "$root/tools/gpu_check" | sort -u >patterns
  [ "$(wc -l <patterns)" -ge 6 ] || fail "found only: $(cat patterns)"
  while IFS=. read -r pattern name; do
    grep -rqE "^TEST(_[FP])?\(${pattern#Of/}, $name" "$root/tests/cuda" || fail "no test is called $pattern.$name"
  done <patterns
}

TakesNoSkippedTestForAGoodOne() {
  stand_in "$folder/tests/test_cuda_device" <<<'echo "gpu.hpp:24: Skipped"; echo "LOUD: nothing of this test ran: no GPU"'
  ends_with 1 "${gpu_check[@]}" --only kernels
  grep -qE '^kernels +SKIPPED' said || fail 'no row that says SKIPPED'
  says 'LOUD: nothing of this test ran: no GPU'
  stand_in "$folder/tests/test_cuda_device" <<<'printf "[  PASSED  ] 0 tests.\n[  SKIPPED ] 3 tests, listed below:\n"'
  ends_with 1 "${gpu_check[@]}" --only networks
  grep -qE '^networks and runners +SKIPPED' said || fail 'no row that says SKIPPED'
  stand_in "$folder/tests/test_cuda_ranks" <<'END'
[ "${GTEST_COLOR:-}" = no ] || printf '\033[0;32m'
printf "[  PASSED  ] 0 tests.\n"
END
  ends_with 1 "${gpu_check[@]}" --only nccl
  grep -qE '^NCCL, 2 ranks on one GPU +SKIPPED' said || fail 'no row that says SKIPPED'
  stand_in "$folder/tests/test_cuda_device" <<'END'
echo 'LOUD: no CPU backend to compare with: built without oneDNN'
printf '[  PASSED  ] 30 tests.\n[  SKIPPED ] 1 test, listed below:\n'
END
  ends_with 0 "${gpu_check[@]}" --only networks
  grep -qE '^networks and runners +ok' said || fail 'the CPU backend is not what is checked'
}

KeepsTheWholeBenchmarkAlsoWhereItIsEnded() {
  stand_in "$folder/cifar_mpi_bench" <<<'echo "  conv1 forward  10.0"; exit 7'
  ends_with 1 "${gpu_check[@]}" --only bench
  grep -qE '^step benchmark +FAILED +status 7' said || fail 'its status is lost'
  [ "$(grep -c 'conv1 forward' "$folder/step_benchmark.txt")" = 2 ] || fail "kept: $(cat "$folder/step_benchmark.txt")"
}

EndsInTime() {
  # a clock shortly before the time limit
  sed 's/left=$((590 - SECONDS))/left=$((2 - SECONDS))/; s,^\. .*lib.sh",. "'"$root"'/tools/lib.sh",' "$root/tools/gpu_check" >late
  ends_with 1 bash ./late --build "$folder" --only kernels
  grep -qE '^kernels +SKIPPED +no time left' said || fail 'it went on'
  grep -q '^test_cuda_device' "$calls" && fail 'it began a check'
  return 0
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
  stand_in "$folder/cifar_mpi_train" <<<'[ "$1" != --self-check ] || exit 0; trap "sleep 1; echo left >>\"$calls\"; exit 0" TERM; while :; do sleep 0.1; done'
  ends_with 1 "${gpu_check[@]}" --only runs
  grep -qE '^a short run +FAILED +status 124' said || fail 'it had time'
  [ "$(grep -c left "$calls")" = 2 ] || fail "it went on before the run had ended: $(cat "$calls")"
}

"$1"
