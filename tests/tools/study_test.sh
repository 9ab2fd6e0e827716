#!/bin/bash
# shellcheck disable=SC2016  # the shells that the tests start expand it
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"
# shellcheck source=tests/tools/study_stand_in.sh
. "$root/tests/tools/study_stand_in.sh"

FindsNothingOnAHealthyCluster() {
  programs
  echo 0.5 >faults/node2.slow_once  # other work for a moment
  run 0 --hosts "$hosts" --nodes 1,2,4
  says 'No problem was found.'
  [ ! -e faults/node2.slow_once ] || fail 'node2 was not measured'
  is 'study["format"], study["version"], study["problems"]' "('cifar_mpi study', 2, [])"
  is 'len(study["nodes"]), len(study["pairs"])' '(4, 6)'
  [ "$(grep -c '"part": "pair"' study/raw.jsonl)" = 36 ] || fail 'a pair was left out of a round'
  is '[row["nodes"] for row in study["scaling"]["weak"]]' '[1, 2, 4]'
  is '0.84 < study["scaling"]["weak"][2]["efficiency"] < 0.86, round(study["scaling"]["weak"][2]["communication"], 3)' '(True, 0.15)'
  is 'study["scaling"]["strong"][2]["verdict"]' 'communication that the step does not hide costs most'
  is '[row["batch_per_rank"] for row in study["scaling"]["strong"]]' '[128, 64, 32]'
  is 'study["sums"][0]["of_mpi"]' 0.5
  # six launches suffice for each of five points: their spread is 1 %
  [ "$(grep -c '"part": "scaling"' study/raw.jsonl)" = 30 ] || fail "launches: $(grep -c '"part": "scaling"' study/raw.jsonl)"
  grep -q '<th scope="col">scaling efficiency</th>' study/study.html || fail 'the table does not name the scaling efficiency'
  grep -q '<h2>Weak scaling</h2>' study/study.html || fail 'the page has no table of the weak scaling'
  grep -q 'a scaling efficiency of 8[456] %' study/study.html || fail "nothing to quote: $(json 'study["paragraph"]')"
  is 'study["links"] == json.load(open("study/links.json")), study["links"]["format"]' "(True, 'cifar_mpi links')"
}

ComparesWaysToUpdateOnRequest() {
  programs
  run 0 --hosts "$hosts" --parts nodes,ways --rounds 2 --ways all-reduce,server:1
  is '[(row["way"], row["ranks"], row["nodes"], row["images_per_s"]["n"]) for row in study["ways"]]' \
    "[('all-reduce', '3+1', 4, 2), ('server:1', '3+1', 4, 2)]"
  # 128 images at 100 images/s, and 20 ms
  is '1285 < study["ways"][0]["ms_per_step"]["median"] < 1315' True
  is '3900 < study["metrics"]["way server:1"]["median"] < 4100' True
  grep -q '<td>3 + 1</td>' study/study.html || fail 'the page has no table of ways'
  run 2 --hosts "$hosts" --parts ways --out without
  says 'the part ways needs --ways, and --ways needs that part'
  run 2 --hosts node1,node2 --parts ways --ways server:2 --out without
  says "--ways has 'server:2'"
  run 2 --hosts "$hosts" --parts ways --ways all-reduce,lokal:2 --out without
  says "--ways has 'lokal:2'"
  echo all-reduce >faults/reported
  run 3 --hosts "$hosts" --ways all-reduce,local:2 --parts nodes,ways --rounds 2 --out some
  says 'did not report all ways'
}

NamesASlowNode() {
  programs
  echo 0.85 >faults/node2.slow
  run 3 --hosts "$hosts" --parts nodes
  is 'len(study["problems"])' 1
  grep -qE '^.*node2 is 1[456] % worse than the median of the other nodes in images_per_s \(images/s\) by their fastest steps, and worse in 36 of 36 parts of the measurement\.' said || fail 'node2 is not named'
}

TellsOtherWorkFromASlowNode() {
  programs
  echo 0.6,0.7 >faults/node2.share
  run 3 --hosts node1,node2 --parts nodes
  is 'len(study["problems"])' 1
  grep -qE 'node2 gets 3[0-9] % less processor time than the median of the other nodes, in each of 6 rounds: other work' said ||
    fail 'the other work is not named'
  # other work that takes half of each node's time does not single out a node
  for i in 1 2; do echo 0.5,0.5 >"faults/node$i.share"; done
  run 0 --hosts node1,node2 --parts nodes --out even
  out=even is 'study["problems"]' '[]'
  # a slow node is named, although other work takes half of all nodes' time
  for i in 1 2 3 4; do echo 0.48,0.52 >"faults/node$i.share"; done
  echo 0.85 >faults/node3.slow
  run 3 --hosts "$hosts" --parts nodes --out loaded
  # by chance a node may get less in every round; the first part of this test is about that sentence
  out=loaded is '[problem[:10] for problem in study["problems"] if "processor time" not in problem]' "['node3 is 1']"
}

NamesWrongSums() {
  programs
  echo 2 >faults/wrong
  run 3 --parts links --rounds 2
  says 'The all-reduce ring of 4096 bytes gave wrong sums.'
}

TellsWhatLimitsTheScaling() {
  programs
  touch faults/compute
  run 0 --hosts "$hosts" --nodes 1,4 --parts scaling --repeats 2
  is 'study["scaling"]["strong"][1]["verdict"]' 'ranks compute less efficiently on smaller batches'
  is 'study["scaling"]["weak"][1]["verdict"]' 'ranks compute more slowly than on fewer nodes'
  python3 - "$root/tools" <<'END' || fail 'a share is below zero'
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import study_numbers as numbers
metrics = {}
result = {"images_per_s": [9, 9, 9], "step_ms": [10, 10, 10], "alone_ms": [14, 14, 14]}  # noise
found = numbers.judge_scaling([{"nodes": 1, "batch": 8, "result": result}], {"nodes": [1], "ranks": 1, "batch_size": 8, "global_batch": 8}, metrics)
assert found["weak"][0]["communication"] == 0, found
assert list(metrics) == ["strong scaling, 1 node", "weak scaling, 1 node"], metrics
END
}

MeasuresDisjointNodesAtOnce() {
  programs
  run 0 --hosts "$hosts" --parts nodes,links,accuracy --rounds 2 --together --apart --seeds 5 --target 75
  is 'len(study["nodes"]), len(study["pairs"]), len(study["accuracy"]["runs"])' '(4, 6, 5)'
  [ "$(grep -c '^mpirun .*-np 1 .*cifar_mpi_train' "$calls")" = 5 ] || fail 'a training was not on one node'
  # at most four at once, on different nodes
  [ "$(grep 'cifar_mpi_train' "$calls" | grep -o 'node[1-4]:1' | sort -u | wc -l)" -ge 2 ] || fail 'all trainings were on one node'
}

NamesANodeWithOtherBits() {
  programs
  echo 00ac >faults/node3.bits
  run 3 --hosts "$hosts" --parts nodes --rounds 2
  is 'len(study["problems"])' 1
  says 'node3 computes other bits than the other nodes with the same kernels.'
  run 3 --hosts node3,node4 --parts nodes --rounds 2 --out two
  says 'node3, node4 disagree on the bits of a step; no majority shows which of them is right.'
}

NamesASlowLink() {
  programs
  echo 3.3 >faults/node4.link
  run 3 --hosts "$hosts" --parts links
  is 'len(study["problems"])' 1
  says 'The link of node4 is slow: 33 % of the usual bandwidth, to each of 3 other nodes.'
  rm faults/*
  # two slow nodes of six are both named, in the order of --hosts
  echo 3.3 | tee faults/node10.link >faults/node9.link
  run 3 --hosts node8,node9,node10,node11,node12,node13 --parts links --rounds 2 --out two
  out=two is '[problem[:24] for problem in study["problems"]]' "['The link of node9 is slo', 'The link of node10 is sl']"
  rm faults/*
  echo 5 >faults/node1+node3.link
  run 3 --hosts "$hosts" --parts links --out cable
  is 'len(study["problems"])' 1
  says 'The link between node1 and node3 is slow: 50 % of the usual bandwidth.'
}

ResumesWithoutRepeatingWhatItHas() {
  programs
  run 0 --hosts "$hosts" --parts nodes,links
  local before
  before=$(launches)
  run 0 --hosts "$hosts" --parts nodes,links
  [ "$(launches)" = "$before" ] || fail "started $(($(launches) - before)) programs again"
  # the last line was cut off by a kill
  truncate -s -20 study/raw.jsonl
  run 0 --hosts "$hosts" --parts nodes,links
  [ "$(launches)" = "$((before + 1))" ] || fail "started $(($(launches) - before)) programs for one missing line"
  run 2 --hosts "$hosts" --parts nodes --model resnet20
  says 'holds a study with another --model (tutorial, not resnet20)'
  # where nothing was measured, a mistyped option does not stay with the folder
  sed -i 1q study/raw.jsonl
  run 0 --hosts "$hosts" --parts nodes --model resnet20
}

LetsOneStudyMeasureInAFolder() {
  programs
  mkdir study
  exec 9>>study/raw.jsonl
  flock 9
  ends_with 2 "$study" --build "$fake/build" --parts nodes
  says "study: another study is measuring in $here/study; wait until it ends, or name another folder with --out"
  [ ! -s study/raw.jsonl ] || fail 'it wrote to the file of the other study'
}

GoesWithoutANodeThatDies() {
  programs
  touch faults/node2.dead
  run 3 --hosts "$hosts" --nodes 1,2,4
  says 'node2 does not answer since'
  is 'study["lost"], sorted(study["nodes"])' "(['node2'], ['node1', 'node3', 'node4'])"
  is '[row["nodes"] for row in study["scaling"]["weak"]]' '[1, 2]'
  is '{(row["nodes"], row["median_us"]["n"]) for row in study["sums"]}' '{(3, 6)}'
  [ "$(grep -c 'node2:1 .* true$' "$calls")" = 1 ] || fail 'the dead node was tried again'
  rm faults/*
  run 0 --hosts "$hosts" --nodes 1,2,4
  is 'study["lost"], len(study["nodes"]), study["scaling"]["weak"][-1]["nodes"]' '([], 4, 4)'
  # sums over three nodes are no sums over four
  is '{(row["nodes"], row["median_us"]["n"]) for row in study["sums"]}' '{(4, 6)}'
}

MeasuresTheTimeToAnAccuracyAndItsEnergy() {
  programs
  mkdir -p powercap/intel-rapl:0
  echo package-0 >powercap/intel-rapl:0/name
  echo 2500000 >powercap/intel-rapl:0/max_energy_range_uj
  echo 2000000 >powercap/intel-rapl:0/energy_uj
  ln -s powercap/intel-rapl:0 counter
  # each training sets the counter to 2 J: the first uses nothing, and one that starts at 1.5 J uses 0.5 J
  run 0 --parts accuracy --seeds 3 --target 81 --powercap powercap
  is '[run["accuracy"] for run in study["accuracy"]["runs"]]' '[81.0, 82.0, 83.0]'
  is '[run["seconds_to_target"] for run in study["accuracy"]["runs"]]' '[20.0, 20.0, 20.0]'
  is 'round(study["accuracy"]["p"], 4)' 0.1127
  says 'p = 0.113, not passed at 0.05'
  is 'study["energy"]["unread"], study["energy"]["joules_per_image"]["median"]' '([], 0.0)'
  cmp - study/accuracy/seed_2/dawnbench.tsv < <(printf 'epoch\thours\ttop1Accuracy\n1\t0.00277778\t70.00\n2\t0.00555556\t82.00\n') ||
    fail 'the lines for DAWNBench differ'
  echo 1500000 >counter/energy_uj
  run 0 --parts accuracy --seeds 1 --target 65 --powercap powercap --out again
  out=again is 'round(study["energy"]["joules_per_image"]["median"], 6)' 0.00025
  out=again is 'round(study["energy"]["joules_to_target"]["median"], 6)' 0.25  # reached after half of the time
  # a counter that wrapped around
  echo 2400000 >counter/energy_uj
  run 0 --parts accuracy --seeds 1 --target 75 --powercap powercap --out wrapped
  out=wrapped is 'round(study["energy"]["joules_to_target"]["median"], 6)' 2.1
  run 0 --parts accuracy --seeds 1 --target 75 --powercap /nowhere --out none
  says "has no counters of energy"
  # a package that the kernel shows twice counts once
  cp -r powercap/intel-rapl:0 powercap/intel-rapl-mmio:0
  echo 1500000 | tee powercap/intel-rapl-mmio:0/energy_uj >counter/energy_uj
  ends_with 0 "$root/tools/study_energy.py" powercap bash -c 'echo 2000000 | tee powercap/*/energy_uj'
  says '"joules": 0.5,'
  rm -r powercap/intel-rapl:0  # a machine that has the copy alone
  echo 1500000 >powercap/intel-rapl-mmio:0/energy_uj
  ends_with 0 "$root/tools/study_energy.py" powercap bash -c 'echo 2000000 | tee powercap/*/energy_uj'
  says '"joules": 0.5,'
}

NoticesANodeThatPrintsNoEnergy() {
  programs
  mkdir -p powercap/intel-rapl:0
  echo package-0 >powercap/intel-rapl:0/name
  echo 2500000 | tee powercap/intel-rapl:0/max_energy_range_uj >powercap/intel-rapl:0/energy_uj
  # the stand-in for mpirun starts one rank in all
  run 0 --hosts node1,node2,node3 --parts accuracy --seeds 2 --target 75 --powercap powercap
  is 'study["energy"]' "{'unread': ['2 of 3 nodes printed no energy; these did: $(hostname)']}"
  says 'Energy not read: 2 of 3 nodes printed no energy'
  run 0 --hosts node1 --parts accuracy --seeds 2 --target 75 --powercap powercap --out one
  out=one is 'study["energy"]["unread"], study["energy"]["joules_per_image"]["n"]' '([], 2)'
}

WaitsForResultsThatAFileSystemShowsLate() {
  programs
  mv "$fake/build/cifar_mpi_bench" "$fake/build/in_time"
  stand_in "$fake/build/cifar_mpi_bench" <<'EOS'
path=${*: -1}
"$(dirname "$0")/in_time" "${@:1:$#-1}" "$path.late"
(sleep 0.5; mv "$path.late" "$path") >/dev/null 2>&1 &
EOS
  run 0 --hosts node1 --parts nodes --rounds 2
  is 'study["nodes"]["node1"]["images_per_s"]["n"]' 2
  # no name is used twice, because a file system may remember that it was not there
  [ -z "$(grep '^cifar_mpi_bench' "$calls" | grep -o 'study/\.[^ ]*\.json' | sort | uniq -d)" ] || fail "a name was used twice: $(cat "$calls")"
}

# Programs that ignore SIGTERM, of the launch's group and of another one that holds the pipe.
EndsALaunchInALimitedTime() {
  cat >stubborn <<'END'
trap '' TERM
stay() { echo "$BASHPID" >"$1"; for i in {1..300}; do sleep 0.1; done; }
export -f stay
stay in_group &
setsid bash -c 'stay other_group' &
stay first
END
  python3 - "$root/tools" <<'END' || fail 'the launcher did not end the launch in time'
import os, sys, time
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import argparse, study_run
study_run.Launcher.GRACE_S = 0.5
launcher = study_run.Launcher(argparse.Namespace(grouped=True, ranks=1, nodes=[1], launcher="mpirun"))
launcher.command = lambda nodes, per_node, program: program
begin = time.monotonic()
try:
    launcher.run(["group1"], ["bash", "stubborn"], limit=0.5)
    raise SystemExit("it ended by itself")
except study_run.Failed as error:
    assert error.status == 124, error
took = time.monotonic() - begin
assert took < 25, f"took {took} s, almost as long as the programs stay"
alive = lambda pid: os.path.exists(f"/proc/{pid}") and open(f"/proc/{pid}/stat").read().split()[2] != "Z"
first, same, other = (int(open(name).read()) for name in ("first", "in_group", "other_group"))
os.kill(other, 9)
assert not alive(first) and not alive(same), "the launch goes on"
END
}

CountsTheEnergyOfGpus() {
  programs
  command -v cc >/dev/null || { echo 'no cc here'; exit 77; }
  # a stand-in for NVIDIA's library with two GPUs: each reading is 3 J after the last; the second one reports nothing
  cc -shared -fPIC -o "$fake/libnvidia-ml.so.1" -xc - <<'END'
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) { *device = (void*)(unsigned long)(index + 1); return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* mj) {
  static unsigned long long now;
  if (device != (void*)1) return 3;
  *mj = now += 3000;
  return 0;
}
END
  LD_LIBRARY_PATH=$fake ends_with 0 "$root/tools/study_energy.py" /nowhere true
  says '"joules": 3.0'
  says 'GPU 1 does not report its energy'
}

KeepsTheExitStatusAndSignalsOfWhatItMeasures() {
  ends_with 7 "$root/tools/study_energy.py" /nowhere sh -c 'exit 7'
  ends_with 9 "$root/tools/study_energy.py" /nowhere sh -c 'trap "exit 9" USR1; kill -USR1 $PPID; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.5; done'
  OMPI_COMM_WORLD_LOCAL_RANK=1 ends_with 0 "$root/tools/study_energy.py" /nowhere true
  says_not 'cifar_mpi energy'
  ends_with 1 "$root/tools/study_energy.py" /nowhere nothing_like_it
  says 'study_energy: nothing_like_it does not start: No such file or directory'
}

ComparesTwoStudies() {
  programs
  run 0 --hosts "$hosts" --parts nodes,links --out before
  run 0 --hosts "$hosts" --parts nodes,links --out same
  echo 3.3 >faults/node4.link
  run 3 --hosts "$hosts" --parts nodes,links --out after
  ends_with 0 "$study" --compare before after
  grep -qE '^(1[0-9]|2[0-2]) of 22 metrics agree within their intervals \([0-9]+ %\); 0 are in one study alone' said || fail 'there is no sum of the comparison'
  ! grep 'all-reduce' said | grep differs || fail 'equal times differ'
  grep -E '^pair node1 - node4: bandwidth .*Gbit/s .*0\.3[0-9]+ +differs$' said >/dev/null || fail 'the slow link is not in the comparison'
  grep '^wrote' said && fail 'a page that was not asked for'
  ends_with 0 "$study" --compare before after --page compared.html
  says 'wrote compared.html'
  python3 - <<'END' || fail 'the page lacks something'
import re
page = open("compared.html").read()
assert "<title>Two studies compared</title>" in page and "No problem was found." in page, page
differ = page[page.index("<h2>Metrics that differ</h2>"):page.index("<h2>All metrics</h2>")]
assert "pair node1 - node4: bandwidth" in differ and "all-reduce" not in differ, differ
assert len(re.findall("<tr>", page[page.index("<h2>All metrics</h2>"):])) == 23, page
assert page.count("The link of node4 is slow") == 1 and page.index("Problems after") < page.index("The link of node4"), page
END
  # a reader that ends early
  (set +o pipefail; "$study" --compare before after 2>errors | true; sleep 1)
  [ ! -s errors ] || fail "it complains about a closed pipe: $(cat errors)"
  ends_with 2 "$study" --compare before
  says 'study: --compare takes two studies, as in --compare before after; got 1: before'
  run 2 --page page.html
  says '--page needs --compare'
  echo precious >data.h5
  ends_with 2 "$study" --compare before after --page data.h5
  says 'data.h5 exists and is not a page of tools/study; name another file with --page, or remove it'
  [ "$(cat data.h5)" = precious ] || fail 'the page replaced another file'
  ends_with 0 "$study" --compare before after --page compared.html
  ends_with 2 "$study" --compare before after --page /nowhere/page.html
  says '/nowhere/page.html cannot be written: No such file or directory'
  sed -i 's/"version": 2/"version": 1/' after/study.json
  ends_with 2 "$study" --compare before after
  says 'after/study.json has version 1; this program reads version 2'
  ends_with 2 "$study" --compare before nothing
  says 'nothing/study.json cannot be read: No such file or directory; name the folders of two studies'
}

TellsWhatFailed() {
  programs
  touch faults/old
  run 2 --parts nodes --out old
  says 'cifar_mpi_bench is older than this tools/study; build it again'
  stand_in "$fake/build/cifar_mpi_bench" <<<'echo "cifar_mpi_bench: no such network" >&2; exit 2'
  run 2 --parts nodes
  says 'cannot start: cifar_mpi_bench: no such network'
  [ ! -e study ] || fail 'a study that was refused leaves its folder'
  mkdir -p there
  run 2 --parts nodes --out there/new/study
  [ -e there ] && [ ! -e there/new ] || fail 'not exactly the folders that the study had made are removed'
  stand_in "$fake/build/cifar_mpi_bench" <<<'sleep 20'
  run 1 --parts nodes --rounds 2 --timeout 0.2 --out slow
  says 'failed: no end after 0.2 s'
  run 1 --hosts node1,node2 --parts links --rounds 2 --timeout 0.1 --out sums
  says 'sums node1+node2 round=0 failed: no end after 1 s'
  says 'pair node1+node2 round=0 failed: no end after 0.1 s'
  says 'nothing could be measured'
  stand_in "$fake/build/cifar_mpi_bench" <<<'echo "cifar_mpi_bench: no memory is left" >&2; exit 6'
  run 1 --hosts node1,node2 --parts nodes --rounds 2 --out memory
  says 'node node1 round=0 failed: cifar_mpi_bench: no memory is left'
  out=memory is 'study["lost"]' '[]'
  stand_in "$fake/build/cifar_mpi_bench" <<<'echo "ssh: no route to node1"; printf "noise %.0s" {1..100}; exit 255'
  run 1 --hosts node1,node2 --parts nodes --rounds 2 --out far
  says 'node node1 round=0 failed: ended with 255: ssh: no route to node1'
  grep -qE '"said": ".*(noise ){90}' far/raw.jsonl || fail 'the output of the launch is lost'
}

EndsWhatItStartedWhenItIsEnded() {
  programs
  stand_in "$fake/build/cifar_mpi_bench" <<EOS
trap 'touch "$here/ended"; exit 143' TERM
touch "$here/begun"
for i in {1..300}; do sleep 0.1; done
EOS
  "$study" --build "$fake/build" --parts nodes >said 2>&1 &
  local pid=$! status=0
  until [ -e begun ]; do sleep 0.05; done
  kill "$pid"
  wait "$pid" || status=$?
  [ "$status" = 143 ] || fail "ended with $status"
  for _ in {1..300}; do [ ! -e ended ] || break; sleep 0.1; done
  [ -e ended ] || fail "what it had started continues"
}

RefusesNonsense() {
  programs
  run 2 --ranks 0
  says "study: --ranks: must be a whole number of at least 1, not '0'; see --help"
  [ "$(wc -l <said)" = 1 ] || fail "more than one sentence: $(cat said)"
  echo precious >file
  run 2 --out ''
  says '--out has an empty value'
  run 2 --out file
  says "--out $here/file is a file; name a folder, which may be new"
  run 2 --nodes 1,1000000000
  says 'at most 256 of at most 256 ranks; name the nodes with --hosts'
  run 2 --ranks 1000000000
  says 'at most 256 of at most 256 ranks; name the nodes with --hosts'
  run 2 --node 1
  says 'unrecognized arguments: --node 1'
  run 2 --parts node
  says "must be of nodes, links, scaling, ways, accuracy, not 'node'"
  run 2 --hosts node1,node1
  says "--hosts takes different names of hosts"
  run 2 --hosts node1 --nodes 1,2
  says '--nodes has 2, but there is 1 node: node1'
  run 2 --nodes 1,3
  says '--global-batch 128 cannot be divided among the 3 ranks of 3 nodes'
  run 0 --hosts node1,node2,node3 --parts nodes --rounds 2 --out three  # which need not divide the batch
  run 2 --hosts node1 --global-batch 7 --ranks 2
  says '--global-batch 7 cannot be divided among the 2 ranks of 1 node'
  run 2 --parts accuracy
  says 'the part accuracy needs --seeds'
  run 2 --seconds 0
  says "must be a number above 0, not '0'"
  run 2 --build "$here/nothing"
  says 'there is no cifar_mpi_bench'
  fake_program scontrol <<<'exit 1'
  SLURM_JOB_NODELIST='node[1-2]' run 2
  says 'scontrol does not name the hosts of the Slurm job (node[1-2]); pass them with --hosts'
  run 2 --launcher srun_or_so
  CIFAR_MPI_LAUNCHER=slurm run 2
  says "CIFAR_MPI_LAUNCHER must be auto, mpirun or srun, not 'slurm'"
  touch file
  run 2 --out file/study
  says 'file/study/raw.jsonl cannot be written: Not a directory'
  mkdir other
  cp file other/notes
  run 2 --out other
  says "--out $here/other holds files, but no study; name a new or empty folder, or one of a study"
  holds_only other notes
  touch other/study.json  # of a study whose first start measured nothing
  run 0 --out other --seeds 1 --parts accuracy
  echo '{"format": "other"}' >other/raw.jsonl
  run 2 --out other
  says 'is not of a study of version 2'
  rm "$fake/mpirun"
  ln -s "$(command -v env)" "$fake/env"
  PATH=$fake ends_with 2 "$study" --build "$fake/build" --launcher mpirun
  says 'there is no mpirun here; load the module of MPI'
}

"$1"
