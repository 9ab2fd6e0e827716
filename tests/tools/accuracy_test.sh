#!/bin/bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

need_python

# A program whose runs end at 93.5 % and half a percent more for each further seed. It fails while there is a file `broken`.
programs() {
  mkdir -p "$fake/build"
  stand_in "$fake/mpirun" <<'EOS'
while [[ $1 == -* ]]; do case $1 in -np | --bind-to) shift 2 ;; *) shift ;; esac; done
exec "$@"
EOS
  stand_in "$fake/build/cifar_mpi_train" <<'EOS'
while [ $# -gt 0 ]; do
  case $1 in --seed) seed=$2 ;; --run-dir) dir=$2 ;; esac
  shift
done
mkdir -p "$dir"
[ ! -e broken ] || { echo 'no such thing'; exit "$(cat broken)"; }
echo 'operations: 0.2245 PFLOP in all, 0.1875 without taps outside the images'
printf '{"kind":"header"}\n{"step":9,"test_accuracy":0.5}\n{"step":18,"test_accuracy":%s}\n' "0.9$((30 + 5 * seed))" >"$dir/metrics.jsonl"
EOS
}
run() { ends_with "$1" "$root/tools/accuracy" --build "$fake/build" --out out --recipe fast94 "${@:2}"; }
trainings() { grep -c '^cifar_mpi_train' "$calls" || true; }

TellsEachSeedAndTheirMean() {
  programs
  run 0 --seeds 3 --ranks 2 --data some.h5 --train '--epochs 2'
  says 'seed 1: 93.50 %, '
  says 'seed 3: 94.50 %, '
  # 4.303 * 0.5 / sqrt(3) = 1.242
  says 'mean of 3: 94.000 %, sd 0.500, 95 % interval 92.758 to 95.242; '
  says ' s, 0.2245 PFLOP'
  grep -q -- '^mpirun .*-np 2 .*cifar_mpi_train --model fast94 --seed 2 --run-dir out/seed_2 --data some.h5 --epochs 2$' "$calls" ||
    fail "training was called so: $(cat "$calls")"
}

TakesRecipesOfFilesAndOfModels() {
  programs
  ends_with 0 "$root/tools/accuracy" --build "$fake/build" --out fast --recipe tutorial-fast --seeds 1
  grep -q -- 'cifar_mpi_train --config .*/jobs/recipes/tutorial-fast.toml --seed 1' "$calls" || fail "training was called so: $(cat "$calls")"
  ends_with 0 "$root/tools/accuracy" --build "$fake/build" --out out --recipe tutorial --seeds 1
  grep -q -- 'cifar_mpi_train --model tutorial --seed 1' "$calls" || fail "training was called so: $(cat "$calls")"
}

GivesNoIntervalForFewerThanThreeSeeds() {
  programs
  run 0 --seeds 1
  says 'mean of 1: 93.500 %, no interval for fewer than 3 seeds; '
  run 0 --seeds 2
  says 'mean of 2: 93.750 %, sd 0.354, no interval for fewer than 3 seeds; '
}

SkipsWhatEndedAndResumesWhatDidNot() {
  programs
  run 0 --seeds 2
  touch broken && echo 7 >broken
  run 1 --seeds 4
  says 'no such thing'
  rm broken
  echo 1000 >out/seed_3.seconds
  run 0 --seeds 4
  [ "$(trainings)" = 5 ] || fail "trained $(trainings) times"
  grep -qE '^seed 3: 94\.50 %, 1[0-9]{3}\.[0-9] s' said || fail 'the time of the first start does not count'
  says 'mean of 4: 94.250 %, sd 0.645, '
}

TakesOneWordForTheTraining() {
  programs
  run 0 --seeds 1 --train --sync-batch-norm
  grep -q -- 'cifar_mpi_train .* --sync-batch-norm$' "$calls" || fail "training was called so: $(cat "$calls")"
  run 2 --train --seeds 1
  says 'accuracy: --train: expected one argument'
}

RefusesForTheTrainingWhatItSetsItself() {
  local words
  programs
  for words in '--epochs 2 --seed 4' '--run-dir X' --config=x.toml '--model resnet20' '--data some.h5' --data=some.h5; do
    run 2 --seeds 2 --train "$words"
    [[ $(cat said) =~ ^'accuracy: --train must not hold --'(seed|run-dir|config|model|data)', because accuracy sets it; give accuracy --'[a-z]+$ ]] ||
      fail "refused so: $words"
  done
  run 2 --seeds 1 --train "--run-dir 'X"
  says 'accuracy: --train cannot be split into words: No closing quotation'
  [ ! -e out ] || fail 'it made a folder'
}

StartsAnewWhereNoRunBegan() {
  programs
  cp "$fake/build/cifar_mpi_train" trains
  stand_in "$fake/build/cifar_mpi_train" <<<'exit 3'
  run 1 --seeds 1 --data /nosuch
  [ ! -e out/seed_1.seconds ] || fail 'the refused start counts'
  cp trains "$fake/build/cifar_mpi_train"
  run 0 --seeds 1 --data some.h5
  rm -r out/seed_1
  run 2 --seeds 1
  says 'out holds runs of {'
}

KeepsRunsOfOtherOptionsApart() {
  programs
  run 0 --seeds 1
  run 2 --seeds 1 --train '--epochs 9'
  says 'give another --out'
  [ "$(trainings)" = 1 ] || fail "trained $(trainings) times"
}

RefusesNonsense() {
  programs
  run 2 --seeds 0
  says "accuracy: --seeds: must be a whole number of at least 1, not '0'; see --help"
  [ "$(wc -l <said)" = 1 ] || fail "more than one sentence: $(cat said)"
  touch broken && echo 2 >broken
  run 2 --seeds 1
  says 'no such thing'
  run 2 --seeds 1 --out ''
  says 'accuracy: --out has an empty value, as from an unset variable; give one, or leave it out'
  run 2 --seeds=
  says '--seeds has an empty value'
  run 2 ''
  says 'a word of the command line has an empty value'
  ends_with 2 "$root/tools/accuracy" --build "$here" --recipe fast94 --seeds 1
  says 'there is no cifar_mpi_train in'
  ends_with 2 "$root/tools/accuracy" --recipe nosuch --seeds 1
  says "--recipe must be one of fast94, resnet18, resnet20, tutorial, tutorial-fast, not 'nosuch'"
  ends_with 2 "$root/tools/accuracy" --recipe ../recipes/fast94 --seeds 1
  says "--recipe must be one of fast94, resnet18, resnet20, tutorial, tutorial-fast, not '../recipes/fast94'"
}

"$1"
