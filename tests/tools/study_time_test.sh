#!/bin/bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
# shellcheck source=tests/tools/study_stand_in.sh
. "$root/tests/tools/study_stand_in.sh"

# clocked STATUS OPTION...: a study on a clock of its own, on which only launches take time: 10 s, or the value of the expression in
# the file takes/KIND (step, allreduce, links, ways or train) of the number of `nodes` and of the `earlier` launches of that kind.
# To end a launch at its limit takes as many seconds as takes/ending says, or none.
clocked() {
  cat >clocked.py <<'END'
import collections, os, runpy, sys
tools = sys.argv.pop(1)
sys.argv[0] = os.path.join(tools, "study")
sys.path.insert(0, tools)
sys.dont_write_bytecode = True
import study_launch, study_run
class Clock:
    now_s = 0.0
    monotonic = staticmethod(lambda: Clock.now_s)
really, earlier = study_launch.Launcher.run, collections.Counter()
def run(self, nodes, program, per_node=None, limit=None):
    kind = "train" if program[0].endswith("study_energy.py") else program[-1] if program == ["true"] else program[1]
    takes = open(f"takes/{kind}").read() if os.path.exists(f"takes/{kind}") else "0" if kind == "true" else "10"
    seconds = eval(takes, {"nodes": len(nodes), "earlier": earlier[kind]})
    earlier[kind] += 1
    Clock.now_s += seconds if limit is None else min(seconds, limit)
    if limit is not None and seconds > limit:
        Clock.now_s += float(open("takes/ending").read()) if os.path.exists("takes/ending") else 0
        raise study_launch.Failed(f"no end after {limit:g} s", 124, limit_s=limit)
    return really(self, nodes, program, per_node)
study_launch.Launcher.run = run
study_launch.time = study_run.time = Clock
runpy.run_path(sys.argv[0], run_name="__main__")
END
  ends_with "$1" python3 clocked.py "$root/tools" --build "$fake/build" --seconds 0.01 "${@:2}"
}
# stopped: what stopped for time, of study.json, as WHAT: LAUNCHES + LAUNCHES LEFT OUT; ...
stopped() { json '"; ".join("%s: %d + %d" % tuple(row.values()) for row in study["time"]["stopped"])'; }
stopped_are() { [ "$(stopped)" = "$1" ] || fail "stopped for time are '$(stopped)', not '$1'"; }

KeepsToAnHourInWhichEachPartHasItsShare() {
  programs
  mkdir takes
  echo 300 >takes/allreduce
  clocked 0 --hosts node1,node2,node3,node4,node5,node6,node7,node8 --nodes 1,8
  is '3500 < study["time"]["spent_s"] <= 3600, study["time"]["minutes"]' '(True, 60.0)'
  is 'min(node["images_per_s"]["n"] for node in study["nodes"].values()) >= 4, len(study["nodes"])' '(True, 8)'
  is 'min(pair["bandwidth_gbit_s"]["n"] for pair in study["pairs"].values()) >= 4, len(study["pairs"])' '(True, 28)'
  is '{row["median_us"]["n"] for row in study["sums"]} in ({4}, {5})' True
  is 'min(row["images_per_s"]["n"] for row in study["scaling"]["weak"] + study["scaling"]["strong"]) >= 4' True
  ! grep '"cut_off"' study/raw.jsonl || fail 'a launch was started that did not fit'
  grep -q '<h2>Stopped for time</h2>' study/study.html || fail 'the page does not say what stopped for time'
  grep -qE '^  all-reduce over all nodes +[45] +[12]$' said || fail 'the text does not say what stopped for time'
  grep -qE '^The study took (59|60)[.0-9]* of 60 min\. More --minutes complete it\.$' said || fail 'the text does not say how long it took'
}

MeasuresEverythingOnceWhenTimeIsTooShort() {
  programs
  clocked 0 --hosts node1,node2,node3 --nodes 1,2 --minutes 0.1 --ways all-reduce --seeds 2 --target 75
  is '[node["images_per_s"]["n"] for node in study["nodes"].values()]' '[1, 1, 1]'
  is '[pair["bandwidth_gbit_s"]["n"] for pair in study["pairs"].values()]' '[1, 1, 1]'
  is '[row["images_per_s"]["n"] for row in study["scaling"]["weak"] + study["scaling"]["strong"]]' '[1, 1, 1, 1]'
  is '{row["median_us"]["n"] for row in study["sums"]}, study["ways"][0]["images_per_s"]["n"], len(study["accuracy"]["runs"])' '({1}, 1, 1)'
  is 'study["links"] is not None, study["time"]["spent_s"], study["problems"]' '(True, 130.0, [])'
  stopped | tr ';' '\n' | sed 's/^ //' | sort | cmp - <(sort <<'END'
nodes: 3 + 15
all-reduce over all nodes: 1 + 5
pairs of nodes: 3 + 15
scaling, 1 node, 128 images per rank: 1 + 11
scaling, 2 nodes, 64 images per rank: 1 + 11
scaling, 2 nodes, 128 images per rank: 1 + 11
ways: 1 + 5
trainings: 1 + 1
END
  ) || fail "stopped for time are '$(stopped)'"
  says 'The study took 2.17 of 0.1 min, because it makes the first launch of each measurement in any case. More --minutes complete it.'
}

# The second launch of one part takes 1000 s, longer than what is left and than the limit of the part.
CutsOffTheLaunchInWhichItsTimeEnds() {
  programs
  mkdir takes
  local part kind what more
  while read -r part kind what; do
    rm -f takes/*
    echo '10 if earlier < 2 else 1000' >"takes/$kind"
    more=()
    [ "$part" != ways ] || more=(--ways all-reduce)
    [ "$part" != accuracy ] || more=(--seeds 3 --target 75)
    out=$part-$kind
    clocked 0 --hosts node1,node2 --nodes 2 --parts "$part" --minutes 5 --timeout 1000 --out "$out" "${more[@]}"
    says 'is cut off: the time of --minutes is over'
    is 'study["time"]["spent_s"], study["problems"]' '(300.0, [])'
    stopped | grep -qE "(^|; )$what: [12] \+ " || fail "$kind of $part is not listed: $(stopped)"
    [ "$(grep -c '"cut_off": true' "$out/raw.jsonl")" = 1 ] || fail 'raw.jsonl does not say which launch was cut off'
  done <<'END'
nodes step nodes
links allreduce all-reduce over all nodes
links links pairs of nodes
scaling step scaling, 2 nodes, (64|128) images per rank
ways ways ways
accuracy train trainings
END
  # a launch that exceeds its own limit while time is left has failed
  rm takes/*
  out=limit
  echo 20 >takes/ways
  clocked 3 --hosts node1,node2 --parts nodes,ways --ways all-reduce --rounds 2 --timeout 15 --out limit
  is 'study["problems"][1], study["time"]["stopped"]' \
    "('ways node1+node2 round=1 ways=all-reduce failed: no end after 15 s', [])"
  # so has one that is ended so late that no time is left
  out=late
  echo '95 if earlier < 2 else 1000' >takes/ways
  echo 20 >takes/ending
  clocked 3 --hosts node1,node2 --parts ways --ways all-reduce --minutes 5 --timeout 100 --out late
  is 'study["problems"], study["time"]["spent_s"]' "(['ways node1+node2 round=2 ways=all-reduce failed: no end after 100 s'], 310.0)"
}

LetsTheFirstTrainingTakeAllMinutesAndNotMore() {
  programs
  mkdir takes
  local minutes limit
  for minutes in 0.1 30; do
    [ "$minutes" = 30 ] && limit=1800 || limit=1200
    out=$minutes
    echo "$limit" >takes/train
    clocked 0 --hosts node1 --parts accuracy --seeds 1 --target 75 --minutes "$minutes" --out "$out"
    is 'len(study["accuracy"]["runs"])' 1
    out=over_$minutes
    echo 100000 >takes/train
    clocked 1 --hosts node1 --parts accuracy --seeds 1 --target 75 --minutes "$minutes" --out "$out"
    says "accuracy node1 seed=1 failed: no end after $limit s"
  done
}

CountsTheTimeOfEarlierStarts() {
  programs
  clocked 0 --hosts "$hosts" --parts nodes,links --minutes 5
  is '280 < study["time"]["spent_s"] <= 300, study["time"]["stopped"] != []' '(True, True)'
  local before what
  before=$(launches) what=$(stopped)
  clocked 0 --hosts "$hosts" --parts nodes,links --minutes 5
  [ "$(launches)" = "$before" ] || fail "started $(($(launches) - before)) programs although no time was left"
  stopped_are "$what"
  # it was ended before the time was over
  cp -r study ended
  sed -i 12q ended/raw.jsonl
  before=$(launches)
  clocked 0 --hosts "$hosts" --parts nodes,links --minutes 5 --out ended
  out=ended is '280 < study["time"]["spent_s"] <= 300' True
  [ "$(launches)" -le "$((before + 19))" ] || fail "started $(($(launches) - before)) programs in the 190 s that were left"
  clocked 0 --hosts "$hosts" --parts nodes,links --minutes 60
  is 'study["time"]["stopped"], study["nodes"]["node1"]["images_per_s"]["n"]' '([], 6)'
  # 24 launches of nodes, 6 of sums, 36 of pairs and one of all links, of 10 s each
  is 'study["time"]["spent_s"]' 670.0
  ends_with 2 "$study" --build "$fake/build" --minutes 0
  says "--minutes: must be a number above 0, not '0'"
}

"$1"
