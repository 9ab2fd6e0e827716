#!/bin/bash
# shellcheck disable=SC2016  # the output has `names` in it
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

need_python
compare=$here/tree/tools/compare_ways

# A tree in which a batch takes 40 ms on one rank. All-reduce ends at 40 %, asynchronous steps are three times as many and end at
# 60 %; half way both are at 50 %.
programs() {
  mkdir -p "$here/tree/tools" "$here/tree/env" "$fake/build"
  cp "$root"/tools/{compare_ways,options.py} "$here/tree/tools/"
  : >"$here/tree/env/mpirun.sh"
  stand_in "$here/tree/tools/shaped_nodes" <<'EOS'
until [ "$1" = -- ]; do shift; done
exec "${@:2}"
EOS
  stand_in "$fake/mpirun" <<'EOS'
while [[ $1 == -* ]]; do case $1 in -np | --bind-to) shift 2 ;; *) shift ;; esac; done
exec "$@"
EOS
  stand_in "$fake/build/cifar_mpi_bench" <<'EOS'
if [ "$1" = step ]; then echo 'ms per step             39.000      40.000      41.000'; exit; fi
echo 'tutorial on 4 ranks, batch 32 of each worker; the 40 ms of computing a batch are replaced by a sleep'
echo 'way              ranks images/step slow ms/step computed/s applied/s MB worker MB server dropped staleness   exchange'
echo 'all-reduce           4         128   no   80.00       1600      1600    12.800         -    0.0%         -   auto (ring)'
echo 'all-reduce           4         128   x3  160.00        800       800    12.800         -    0.0%         -   auto (ring)'
echo 'server:1:async     3+1          32   no   20.00       1600      1500     2.800     8.500    6.2%     2,2,3   server, rank 3'
echo 'server:1:async     3+1          32   x3   30.00       1100      1066     2.800     8.500    3.1%     1,3,6   server, rank 3'
EOS
  stand_in "$fake/build/cifar_mpi_train" <<'EOS'
last=0.4 steps=100
for word; do
  [ "${before-}" != --run-dir ] || dir=$word
  [ "$word" != async ] || { last=0.6; steps=300; }
  before=$word
done
mkdir -p "$dir"
printf '{"step":%s,"epoch":%s,"test_accuracy":%s}\n' "$steps" 1.0 0.5 $((2 * steps)) 2.0 "$last" >"$dir/metrics.jsonl"
EOS
}
run() { ends_with "$1" "$compare" --build "$fake/build" --ways all-reduce,server:1:async "${@:2}"; }

TellsTheSpeedOfEachWayOnEachLink() {
  programs
  run 0 --part speed --rates 10gbit,100mbit
  says '4 ranks in total, batch 32 per worker. A worker sleeps 40 ms instead of computing a batch'
  says '| 10gbit | `all-reduce` | 4 | 80.00 | 1600 | 12.800, - | 0.0% | - | 800 | 0.0% | - |'
  says '| 100mbit | `server:1:async` | 3 + 1 | 20.00 | 1500 (1600) | 2.800, 8.500 | 6.2% | 2,2,3 | 1066 (1100) | 3.1% | 1,3,6 |'
  grep -qx -- 'shaped_nodes --nodes 4 --rate 100mbit -- .*cifar_mpi_bench ways --ways all-reduce,server:1:async --compute-ms 40 .*' \
    "$calls" || fail "the nodes were started so: $(cat "$calls")"
}

HoldsTheForecastAgainstWhatNodesTake() {
  programs
  stand_in "$fake/build/cifar_mpi_bench" <<'EOS'
[ "$1" = links ] || echo 'all-reduce 4 128 no 80.00 1600 1600 12.800 - 0.0% - auto (ring)'
EOS
  stand_in "$fake/build/cifar_mpi_report" <<'EOS'
[[ $* != *1gbit* ]] || factor=2
echo "       2        2      $((${factor-1} * 72)).00        0.81        3270  computation, 72 ms   ring"
echo "       4        4      $((${factor-1} * 80)).00        0.81        3270  computation, 80 ms   ring"
EOS
  run 0 --part forecast --nodes 2,4 --rates 10gbit,1gbit --compute-ms 60
  says '| 10gbit | 2 | 80.0 | 72.0 | 0.90 |'
  says '| 1gbit | 4 | 80.0 | 160.0 | 2.00 |'
  says 'The forecast is wrong by 45 % (median), and by 100 % at most.'
  grep -q -- 'shaped_nodes --nodes 2 --rate 10gbit -- .* --record ' "$calls" || fail "nothing was recorded: $(cat "$calls")"
  run 1 --part forecast --nodes 2,3 --compute-ms 60
  says 'did not forecast all numbers of nodes'
  stand_in "$here/tree/tools/shaped_nodes" <<<'exit 77'
  run 1 --part forecast --compute-ms 60
  says 'needs root and the right to make namespaces'
}

SaysWhereNoLinksCanBeMade() {
  programs
  stand_in "$here/tree/tools/shaped_nodes" <<<'exit 77'
  run 0 --part speed --compute-ms 7 --ranks 3
  says '| none, one node | `all-reduce` | 4 | 80.00 |'
  says_not '| 10gbit'
  [ "$(grep -c '^cifar_mpi_bench' "$calls")" = 1 ] || fail "was called more than once: $(cat "$calls")"
  grep -q -- '^mpirun .*-np 3 .*--compute-ms 7' "$calls" || fail "the ranks were started so: $(cat "$calls")"
}

TellsWhatAccuracyEachWayReachesAndWhen() {
  programs
  run 0 --part accuracy --seeds 1,2 --epochs 2
  says '| `all-reduce` | 40.0 (40.0 to 40.0) | not by all seeds |'
  says '| `server:1:async` | 60.0 (60.0 to 60.0) | 2.0 |'
  grep -q -- '--seed 2 .*--update server --servers 1 --aggregate async' "$calls" || fail "training was called so: $(cat "$calls")"
}

TellsTheTimeToAnAccuracyFromBoth() {
  programs
  run 0 --rates 1gbit --seeds 1 --epochs 2 --target 45
  says '| `all-reduce` | 40.0 (40.0 to 40.0) | 1.0 | 8 (16) |'
  says '| `server:1:async` | 60.0 (60.0 to 60.0) | 1.0 | 6 (9) |'
}

TellsWhatFailed() {
  programs
  stand_in "$fake/build/cifar_mpi_train" <<<'echo no such data >&2; exit 3'
  run 1 --part accuracy
  says 'no such data'
  stand_in "$fake/build/cifar_mpi_bench" <<<'echo all-reduce'
  run 1 --part speed --compute-ms 1
  says 'did not report all ways'
}

EndsWhatItStartedWhenItIsEnded() {
  programs
  stand_in "$here/tree/tools/shaped_nodes" <<EOS
trap 'touch "$here/ended"; exit 143' TERM
touch "$here/begun"
for i in {1..300}; do sleep 0.1; done
EOS
  "$compare" --build "$fake/build" --ways all-reduce --part speed --compute-ms 1 2>/dev/null &
  local pid=$! status=0
  until [ -e "$here/begun" ]; do sleep 0.05; done
  kill "$pid"
  wait "$pid" || status=$?
  [ "$status" = 143 ] || fail "ended with $status"
  [ -e "$here/ended" ] || fail "what it had started went on"
}

RefusesNonsense() {
  programs
  run 2 --ranks 1
  says "compare_ways: --ranks: must be a whole number of at least 2, not '1'; see --help"
  [ "$(wc -l <said)" = 1 ] || fail "more than one sentence: $(cat said)"
  run 2 --compute-ms 0
  says "--compute-ms: must be a number above 0, not '0'"
  run 2 --part all
  run 2 --ways ring
  says "not 'ring'"
  run 2 --build "$here/nothing"
  says 'there is no cifar_mpi_bench'
  run 2 --part forecast
  says 'there is no cifar_mpi_report'
  rm "$fake/build/cifar_mpi_train"
  for part in accuracy both; do
    run 2 --part "$part"
    says 'there is no cifar_mpi_train'
  done
  for rates in 0gbit 10gbit,fast; do
    run 2 --part speed --rates "$rates"
    says "must be speeds like 10gbit or none, separated by commas, not '${rates#*,}'"
  done
  run 2 --part speed --rates 10gbit,
  says "--rates has an empty value in '10gbit,', as from an unset variable; give one, or leave it out"
}

"$1"
