#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

# A checkout with the real scripts and stand-ins for everything they start; `calls` lists the starts.
clone="$here/a clone"
mkdir "$clone" "$clone/tools" "$clone/env" "$clone/jobs"
cp -r "$root/jobs/recipes" "$clone/jobs/"
cp "$root"/tools/{lib.sh,quickstart,run_tests} "$clone/tools/"
cp "$root"/env/{mpirun,one_machine,shared_files}.sh "$clone/env/"
export CIFAR_MPI_NO_INSTALL=1
stand_in "$fake/cmake" <<<'[ "$1" = --build ] || touch "${4:?}/CMakeCache.txt"; echo "[1/1] Building"; [ ! -e "$calls.broken" ]'
stand_in "$fake/mpirun" <<<'shift 2; "$@"'
stand_in "$fake/ctest" <<'END'
printf '%s\n' '1/2 Test  #7: Ring.Sums ....   Passed    1.25 sec' '2/2 Test #12: Tree.Sums ....***Failed   20.50 sec' \
  '50% tests passed, 1 tests failed out of 2' "data=$CIFAR_MPI_DATA"
exit 8
END
stand_in "$clone/tools/fetch_cifar10" <<<'exit 0'
mkdir "$clone/build"
stand_in "$clone/build/cifar_mpi_pack" <<<'mkdir -p "${4%/*}"; echo packed >"$4"'
stand_in "$clone/build/cifar_mpi_train" <<'END'
mkdir -p "$4/checkpoints"
touch "$4/checkpoints/step_000000390.h5" "$4/checkpoints/step_000001560.h5"
printf '%s\n' '{"step":1,"images_per_second":5000.25,"seconds":9}' '{"images_per_second":1e9}' \
  '{"step":3,"epoch":3.998,"images_per_second":5.1e3,"seconds":9}' '{"accuracy": 0.6}' >"$4/metrics.jsonl"
END
stand_in "$fake/nvidia-smi" <<<'exit 9'
stand_in "$clone/build/cifar_mpi_report" <<<'echo "page            $1/report.html"'
stand_in "$clone/build/cifar_mpi_eval" <<<'echo "2026-11-20: precision @ 1 = 0.6001"'

ExplainsItself() {
  ends_with 0 "$root/tools/quickstart" --help
  says '--epochs N'
  says 'Exit status'
}

TrainsOnOneRankOnAMachineWithOneGpu() {
  stand_in "$fake/nvidia-smi" <<<'echo "GPU 0: A (UUID: GPU-1)"'
  cp "$clone/build/cifar_mpi_train" trains
  { printf '#!/bin/bash\n[ "$1" != --check-build ] || { cat %q/built; exit; }\n' "$PWD"; tail -n +2 trains; } >"$clone/build/cifar_mpi_train"
  echo 'cuda        not built' >built
  ends_with 0 "$clone/tools/quickstart"
  grep -q '^mpirun -np 2 ' "$calls" || fail "without the backend: $(grep mpirun "$calls")"
  rm -r "$clone/runs"
  echo 'cuda        CUDA 13.0, cuDNN 9.19.0' >built
  ends_with 0 "$clone/tools/quickstart"
  grep -q '^mpirun -np 1 ' "$calls" || fail "with the backend: $(grep mpirun "$calls")"
}

EndsWithTheResult() {
  ends_with 2 "$clone/tools/quickstart" --from 'some where'
  says "there is no 'some where'"
  mkdir 'some where'
  ends_with 0 "$clone/tools/quickstart" --from 'some where'
  says 'test accuracy   0.6001'
  says 'speed           5100 images/s with 2 ranks'
  says "checkpoint      $clone/runs/quickstart/checkpoints/step_000001560.h5"
  says '--run-dir runs/quickstart --epochs 8'
  grep -q 'fetch_cifar10 .*--from some where' "$calls" || fail "--from was not handed on"
  grep -q 'cifar_mpi_train .*--epochs 4$' "$calls" || fail "trained: $(grep train "$calls")"
}

# Where packages do not help, the small libraries are built, then found; and nothing is trained on a login node.
BuildsWhatIsMissingWithoutRoot() {
  unset CIFAR_MPI_NO_INSTALL
  stand_in "$clone/env/build_deps.sh" <<<'mkdir -p "${@: -1}"'
  stand_in "$clone/env/install_deps.sh" <<<'exit "${packages_missing:-0}"'
  stand_in "$clone/build/cifar_mpi_train" <<<'echo "built with oneDNN"'
  fake_program apt-get </dev/null
  fake_program dpkg-query </dev/null
  fake_program id <<<'echo 1000'
  fake_program sudo <<<'exit 1'
  ends_with 0 "$clone/tools/quickstart" --build-only
  grep -q '^install_deps.sh $' "$calls" || fail "did not install packages: $(cat "$calls")"
  ! grep -q '^build_deps' "$calls" || fail "built what is installed: $(cat "$calls")"
  : >"$calls"
  packages_missing=1 ends_with 0 "$clone/tools/quickstart" --build-only
  says 'built with oneDNN'
  ! grep -qE '^install_deps.sh $|^fetch|^mpirun' "$calls" || fail "called: $(cat "$calls")"
  grep -qxF "build_deps.sh --prefix $clone/deps" "$calls" || fail "called: $(cat "$calls")"
  grep -qF -- "-DCIFAR_MPI_TESTS=OFF -DCMAKE_PREFIX_PATH=$clone/deps" "$calls" || fail "configured: $(cat "$calls")"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart" --build-only --deps 'the archives' --prefix "$here/own"
  grep -qxF "build_deps.sh --deps the archives --prefix $here/own" "$calls" || fail "called: $(cat "$calls")"
  stand_in "$clone/env/build_deps.sh" <<<'exit 69'
  ends_with 69 "$clone/tools/quickstart"
}

BuildsWithMakeWhereThereIsNoNinja() {
  local tool
  mkdir tools
  for tool in awk bash cat dirname mkdir grep tee sed sort tail nproc touch mktemp mv rm find; do ln -s "$(command -v "$tool")" tools/; done
  stand_in "$clone/build/cifar_mpi_train" <<<'exit 0'
  PATH=$fake:$here/tools ends_with 0 "$clone/tools/quickstart" --build-only
  grep -qF -- '-G Unix Makefiles' "$calls" || fail "configured: $(cat "$calls")"
}

EndsWithAReportThatChangesNothing() {
  ends_with 0 "$clone/tools/quickstart"
  says "page            $clone/runs/quickstart/report.html"
  stand_in "$clone/build/cifar_mpi_report" <<<'exit 4'
  ends_with 0 "$clone/tools/quickstart"
  says 'test accuracy   0.6001'
  says 'there is no report, but the result is valid'
}

RepeatsNothing() {
  ends_with 0 "$clone/tools/quickstart"
  cp said first
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart"
  says 'test accuracy   0.6001'
  ! grep -E 'fetch|pack|train|eval' "$calls" | grep -v cmake || fail "called: $(cat "$calls")"
}

ShowsTheResultOfWhatWasTrainedSince() {
  ends_with 0 "$clone/tools/quickstart" --ranks 3
  stand_in "$clone/build/cifar_mpi_eval" <<<'echo "precision @ 1 = 0.7002"'
  touch "$clone/runs/quickstart/checkpoints/step_000003120.h5"
  echo '{"step":3120,"epoch":8,"images_per_second":5e3}' >>"$clone/runs/quickstart/metrics.jsonl"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart"
  says 'test accuracy   0.7002'
  says "checkpoint      $clone/runs/quickstart/checkpoints/step_000003120.h5"
  says 'images/s with 3 ranks'
  says 'mpirun -np 3 build/cifar_mpi_train --data data/cifar10.h5 --run-dir runs/quickstart --epochs 16'
  ! grep -q "^cifar_mpi_train" "$calls" || fail "it trained: $(cat "$calls")"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart"
  says 'test accuracy   0.7002'
  ! grep -q "^cifar_mpi_eval" "$calls" || fail "it evaluated again: $(cat "$calls")"
}

ShowsTheResultOfACheckpointThatWasReplaced() {
  ends_with 0 "$clone/tools/quickstart"
  stand_in "$clone/build/cifar_mpi_eval" <<<'echo "precision @ 1 = 0.7002"'
  touch -d '1 hour' "$clone/runs/quickstart/checkpoints/step_000001560.h5"
  ends_with 0 "$clone/tools/quickstart"
  says 'test accuracy   0.7002'
}

TakesOnlyFilesNamedAsCheckpoints() {
  ends_with 0 "$clone/tools/quickstart"
  local checkpoints=$clone/runs/quickstart/checkpoints
  touch -d '1 hour' "$checkpoints/step_good.h5" "$checkpoints/step_9999999990.h5.h5"
  ln -s /dev/null "$checkpoints/step_000009999.h5"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart"
  ! grep -q '^cifar_mpi_eval' "$calls" || fail "it evaluated $(grep '^cifar_mpi_eval' "$calls")"
}

TrainsWhereTheCheckpointsAreGone() {
  ends_with 0 "$clone/tools/quickstart"
  rm -r "$clone/runs/quickstart/checkpoints"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart"
  grep -q "^cifar_mpi_train" "$calls" || fail "called: $(cat "$calls")"
}

TrainsOnWhenAsked() {
  ends_with 0 "$clone/tools/quickstart"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart" --epochs 6 --ranks 1
  grep -q 'mpirun -np 1 .*--epochs 6$' "$calls" || fail "called: $(cat "$calls")"
}

TrainsAgainWhenTold() {
  ends_with 0 "$clone/tools/quickstart"
  touch "$clone/runs/quickstart/old"
  ends_with 0 "$clone/tools/quickstart" --fresh
  [ ! -e "$clone/runs/quickstart/old" ] || fail "the old run is still there"
}

GoesOnWithTheRanksOfAnInterruptedTraining() {
  cp "$clone/build/cifar_mpi_train" trains
  stand_in "$clone/build/cifar_mpi_train" <<<'exit 75'
  ends_with 75 "$clone/tools/quickstart" --ranks 4
  cp trains "$clone/build/cifar_mpi_train"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart"
  grep -q '^mpirun -np 4 ' "$calls" || fail "called: $(cat "$calls")"
  # training must not use ranks whose network fails
  rm "$clone/runs/quickstart/summary.txt"
  stand_in "$clone/build/cifar_mpi_train" <<<'exit 4'
  ends_with 4 "$clone/tools/quickstart" --ranks 3
  : >"$calls"
  ends_with 4 "$clone/tools/quickstart"
  grep -q '^mpirun -np 4 ' "$calls" || fail "called: $(cat "$calls")"
}

BelievesNoRanksThatAreNoNumber() {
  local content
  for content in '2 rm -rf /' 'a[$(touch executed)0]' 0 ''; do
    rm -rf "$clone/runs"
    mkdir -p "$clone/runs/quickstart"
    printf '%s\n' "$content" >"$clone/runs/quickstart/ranks"
    ln -s "$here/precious" "$clone/runs/quickstart/summary.txt.tmp"
    : >"$calls"
    ends_with 0 "$clone/tools/quickstart"
    grep -q '^mpirun -np 2 ' "$calls" || fail "'$content' leads to: $(cat "$calls")"
    if [ -e executed ] || [ -e precious ]; then fail "'$content' was executed, or a link written through"; fi
  done
}

KeepsNoResultOfAFailedTraining() {
  stand_in "$clone/build/cifar_mpi_train" <<<'exit 8'
  ends_with 8 "$clone/tools/quickstart"
  says 'status 8'
  [ ! -e "$clone/runs/quickstart/summary.txt" ] || fail "there is a summary"
}

LeavesNoRanksBehindWhenStopped() {
  local starting
  stand_in "$fake/mpirun" <<<'trap "touch $calls.asked; exit 75" USR1; touch "$calls.started"; for i in {1..300}; do sleep 0.1; done'
  "$clone/tools/quickstart" >said 2>&1 &
  starting=$!
  for ((i = 0; i < 600; ++i)); do [ ! -e "$calls.started" ] || break; sleep 0.1; done
  kill -TERM "$starting"
  status=0
  wait "$starting" || status=$?
  [ "$status" = 75 ] || fail "expected the status of the ranks, 75, not $status"
  [ -e "$calls.asked" ] || fail "the ranks were not asked to stop"
}

LeavesACheckpointAfterCtrlC() {
  stand_in "$fake/mpirun" <<<'trap "touch $calls.asked; exit 75" USR1; trap "exit 1" INT; touch "$calls.started"; for i in {1..300}; do sleep 0.1; done'
  set -m  # so that it has a process group of its own, as in a terminal
  "$clone/tools/quickstart" >said 2>&1 &
  set +m
  for ((i = 0; i < 600; ++i)); do [ ! -e "$calls.started" ] || break; sleep 0.1; done
  kill -INT -- -$!
  status=0
  wait $! || status=$?
  [ "$status" = 75 ] || fail "expected the status of the ranks, 75, not $status"
  [ -e "$calls.asked" ] || fail "the ranks were not asked to stop"
  says 'before its first checkpoint; quickstart starts over'
}

EndsWhereTheDatasetCannotBeWritten() {
  stand_in "$clone/build/cifar_mpi_pack" <<<'exit 5'
  ends_with 5 "$clone/tools/quickstart"
  ! grep train "$calls" | grep -v cmake || fail "it trained all the same"
}

ShowsWhyTheBuildFailed() {
  touch "$calls.broken"
  ends_with 1 "$clone/tools/quickstart"
  says '[1/1] Building'
  says "the whole log is $clone/build/quickstart.log"
}

TrainsARecipeInARunOfItsOwn() {
  ends_with 0 "$clone/tools/quickstart"
  cp "$clone/runs/quickstart/summary.txt" tutorials
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart" --recipe=fast94 --ranks=4
  grep -qxF "cifar_mpi_train --data $clone/data/cifar10.h5 --run-dir $clone/runs/quickstart_fast94 --model fast94" "$calls" ||
    fail "trained: $(grep train "$calls")"
  grep -q '^cifar_mpi_eval .*/runs/quickstart_fast94/.* --views 6$' "$calls" || fail "evaluated: $(grep eval "$calls")"
  says "train again     ${clone/ /\\ }/tools/quickstart --recipe fast94 --fresh"
  says_not 'train further'
  cmp tutorials "$clone/runs/quickstart/summary.txt" || fail "the result of the tutorial changed"
  : >"$calls"
  CIFAR_MPI_QUICKSTART_EPOCHS=2 ends_with 0 "$clone/tools/quickstart" --recipe resnet20
  grep -q '^cifar_mpi_train .*/runs/quickstart_resnet20 --model resnet20 --epochs 2$' "$calls" || fail "trained: $(grep train "$calls")"
  grep -q '^cifar_mpi_eval .*/data/cifar10.h5$' "$calls" || fail "evaluated: $(grep eval "$calls")"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart" --recipe tutorial-fast
  grep -qxF "cifar_mpi_train --data $clone/data/cifar10.h5 --run-dir $clone/runs/quickstart_tutorial-fast --config $clone/jobs/recipes/tutorial-fast.toml" \
    "$calls" || fail "trained: $(grep train "$calls")"
  : >"$calls"
  ends_with 0 "$clone/tools/quickstart" --recipe tutorial
  ! grep -qE '^cifar_mpi_(train|eval)' "$calls" || fail "tutorial is not the default: $(cat "$calls")"
  says '--run-dir runs/quickstart --epochs 8'
}

NamesTheRecipeOfATrainingThatFailed() {
  stand_in "$clone/build/cifar_mpi_train" <<<'exit 75'
  ends_with 75 "$clone/tools/quickstart" --recipe fast94
  says 'before its first checkpoint; quickstart --recipe fast94 starts over'
}

RefusesAnUnknownRecipe() {
  local name
  for name in resnet fast 'fast94 ' ../recipes/tutorial '*'; do
    ends_with 2 "$clone/tools/quickstart" --recipe "$name"
    says "--recipe must be one of fast94, resnet18, resnet20, tutorial-fast, tutorial, not '$name'"
  done
  ends_with 2 "$clone/tools/quickstart" --recipe
  says '--recipe needs a value'
  [ ! -s "$calls" ] || fail "called: $(cat "$calls")"
}

RefusesEpochsBeforeItBuilds() {
  local epochs
  for epochs in 0 -1 0.0e9 1e999 2000000000; do
    ends_with 2 "$clone/tools/quickstart" --epochs "$epochs"
    says "quickstart: --epochs must be above 0 and at most 1000000000, not $epochs; see --help"
  done
  for epochs in many . 1e 4x; do
    CIFAR_MPI_QUICKSTART_EPOCHS=$epochs ends_with 2 "$clone/tools/quickstart"
    says "quickstart: --epochs: must be a finite number, not '$epochs'; see --help"
  done
  [ ! -s "$calls" ] || fail "called: $(cat "$calls")"
  ends_with 0 "$clone/tools/quickstart" --epochs .5
}

RefusesRanksThatAreNoNumber() {
  ends_with 2 "$clone/tools/quickstart" --ranks two
  says "not 'two'"
  [ ! -s "$calls" ] || fail "called: $(cat "$calls")"
}

RunTestsEndsWithCTestsStatus() {
  ends_with 8 "$clone/tools/run_tests" -R Ring
  [ "$(tail -n 1 said)" = "data=$clone/data/cifar10.h5" ] || fail "something follows CTest's output"
  grep -q 'ctest .* -R Ring$' "$calls" || fail "called: $(cat "$calls")"
}

RunTestsRefusesOptionsThatCTestIgnores() {
  stand_in "$fake/ctest" <<<"[ \$# -gt 1 ] || exec $(printf %q "$(PATH=${PATH#*:} command -v ctest)") --help; exit 8"
  local words
  for words in --foo -Rx --tests-regexp=Ring '-R Ring --verbos' '-j4 -z'; do
    # shellcheck disable=SC2086
    ends_with 2 "$clone/tools/run_tests" $words
    says "run_tests: CTest has no option '${words##* }'; see ctest --help"
  done
  ! grep '^cmake' "$calls" || fail 'it was built first'
  ends_with 8 "$clone/tools/run_tests" -R Ring -j4 --repeat until-pass:2 --timeout 60 -LE slow -VV -E 'a|b'
}

RunTestsSaysInCiWhereTheTimeWent() {
  printf '# ninja log v5\n10\t2510\t9\ta.cpp.o\t1\n2510\t42510\t9\tb.cpp.o\t1\n0\t99999\t9\tlib.a\t1\n' >"$clone/build/.ninja_log"
  CI=true CI_STARTED=$(($(date +%s) - 3600)) ends_with 8 "$clone/tools/run_tests"
  [ "$(grep -n '\.o$\|Sums$' said | sed 's/[0-9]*: *//' | tr -s ' ' | tr '\n' ,)" = '40.0 b.cpp.o,2.5 a.cpp.o,20.50 Tree.Sums,1.25 Ring.Sums,' ] ||
    fail "the slowest are not named: $(cat said)"
  says_not lib.a
  [ "$(grep -c 'tests passed' said)" = 1 ] || fail "CTest's summary is there twice"
  says '60 minutes since the start: WARNING: the limit is 35'
  [ "$(tail -n 2 said)" = "50% tests passed, 1 tests failed out of 2
data=$clone/data/cifar10.h5" ] || fail "something follows CTest's output"
  CI=true CI_STARTED='' ends_with 8 "$clone/tools/run_tests"
  says_not WARNING
  CI='' ends_with 8 "$clone/tools/run_tests"
  says_not '2.5  a.cpp.o'
}

RunTestsEndsInCiWithCTestsStatusAfterThousandsOfTests() {
  stand_in "$fake/ctest" <<<'for ((i = 1; i <= 4000; ++i)); do echo "$i/4000 Test #$i: Ring.Sums_$i ....   Passed    1.25 sec"; done
    echo "100% tests passed, 0 tests failed out of 4000"'
  CI=true ends_with 0 "$clone/tools/run_tests"
  [ "$(tail -n 1 said)" = '100% tests passed, 0 tests failed out of 4000' ] || fail "CTest's summary is not last: $(tail -n 3 said)"
}

RunTestsGoesOnWithoutData() {
  stand_in "$clone/tools/fetch_cifar10" <<<'exit 69'
  ends_with 8 "$clone/tools/run_tests"
  says 'NO REAL DATA'
  [ "$(tail -n 1 said)" = data= ] || fail "the tests got a data set"
}

RunTestsSaysWhenTheDatasetCouldNotBeMade() {
  stand_in "$clone/build/cifar_mpi_pack" <<<'exit 5'
  ends_with 8 "$clone/tools/run_tests"
  says 'status 5'
  says_not 'NO REAL DATA'
}

TheAccuracyTestSkipsOnlyWithoutASource() {
  mkdir -p "$clone/tests/accuracy" other
  cp "$root/tests/accuracy/real_cifar10.sh" "$clone/tests/accuracy/"
  cp -r "$clone/build/." other
  stand_in other/cifar_mpi_pack <<<'exit 5'
  ends_with 5 "$clone/tests/accuracy/real_cifar10.sh" other
  says_not SKIPPED
  grep -qF -- "fetch_cifar10 --out $clone/downloads/cifar-10-batches-bin --pack $here/other/cifar_mpi_pack" "$calls" ||
    fail "the packer of another build: $(cat "$calls")"
  stand_in "$clone/tools/fetch_cifar10" <<<'exit 69'
  ends_with 77 "$clone/tests/accuracy/real_cifar10.sh" other
  says SKIPPED
  stand_in "$clone/tools/fetch_cifar10" <<<'exit 3'
  ends_with 3 "$clone/tests/accuracy/real_cifar10.sh" other
}

"$1"
