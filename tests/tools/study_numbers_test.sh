#!/bin/bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

need_python

KnowsTheStatistics() {
  # order statistics of the median, and Student's distribution, from published tables
  python3 - "$root/tools" <<'END' || fail 'a number differs from the tables'
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import study_numbers as numbers
for n, low, high in (5, 1, 5), (6, 1, 6), (9, 2, 8), (12, 3, 10), (20, 6, 15), (50, 18, 33):
    found = numbers.interval(range(1, n + 1))
    assert (found["low"], found["high"]) == (low, high), (n, found)
for t, freedom, tail in (6.314, 1, 0.05), (2.920, 2, 0.05), (2.015, 5, 0.05), (2.228, 10, 0.025), (1.984, 100, 0.025), (-2.015, 5, 0.95):
    assert abs(numbers.t_tail(t, freedom) - tail) < 1e-4, (t, freedom, numbers.t_tail(t, freedom))
assert numbers.is_worse([0.84, 0.86, 0.85, 0.85, 0.86], 0.05, 0.001)
assert not numbers.is_worse([0.84, 0.86, 0.96, 0.85, 0.86], 0.05, 0.001), "one round is not worse"
assert not numbers.is_worse([0.85, 0.77, 0.69, 0.94, 0.86], 0.05, 0.001), "the spread explains it"  # two healthy nodes of a busy machine
assert abs(numbers.sign_tail(28, 36) - 5.97e-4) < 1e-6 and numbers.sign_tail(0, 36) == 1, numbers.sign_tail(28, 36)
mean = numbers.mean_interval([1, 2, 3, 4, 5])
assert abs(mean["high"] - 3 - 2.776 * mean["deviation"] / 5**0.5) < 1e-3, mean
END
}

TellsASlowNodeFromNoise() {
  # two nodes of a busy machine: in a tenth of the parts of a launch a node is a quarter slower, and a third of the steps of all
  # parts take up to twice as long
  python3 - "$root/tools" <<'END' || fail 'a slow node was not named, or a healthy one was'
import random, sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import study_numbers as numbers
def named(factor, draw, rounds=6):
    lines = []
    for i in range(rounds):
        for node in ("node1", "node2"):
            busy = [1.25 if draw.random() < 0.1 else 1.0 for _ in range(6)]
            steps = [5 * busy[k // 9] * draw.uniform(1, 1.02) * (draw.uniform(1, 2) if draw.random() < 1 / 3 else 1.0) for k in range(54)]
            lines.append({"node": node, "round": i, "result": {"slice_ms": [(factor if node == "node2" else 1) * step for step in steps]}})
    return list(numbers.slow_steps(lines, ["node1", "node2"], 0.05, 0.001))
assert [named(1.0, random.Random(seed)) for seed in range(100)] == [[]] * 100
found = [named(1 / 0.85, random.Random(seed)) for seed in range(100)]
assert found.count(["node2"]) >= 99 and all(names in ([], ["node2"]) for names in found), found
assert not named(1 / 0.85, random.Random(1), rounds=1), "6 parts are too few for p < 0.001"
# of three nodes one is slow, and one is measured by other parts
slices = {"node1": [5.0] * 12, "node2": [6.0] * 12, "node3": [5.0] * 3}
lines = [{"node": node, "round": i, "result": {"slice_ms": times}} for i in range(6) for node, times in slices.items()]
assert numbers.slow_steps(lines, list(slices), 0.05, 0.001) == {"node2": (1 - 5 / 6, 36, 36)}
assert numbers.slow_steps(lines[:1], ["node1"], 0.05, 0.001) == {}
close = [{"node": node, "round": i, "result": {"slice_ms": [ms] * 12}} for i in range(6) for node, ms in (("node1", 5.0), ("node2", 5.2))]
assert numbers.slow_steps(close, ["node1", "node2"], 0.05, 0.001) == {}, "4 % are no fault"
# a node whose fastest steps are as fast in two of six launches is not named; in one, it is
for fast_rounds, names in (2, []), (1, ["node2"]):
    times = {"node1": [5.0] * 54, "node2": [4.9] * 9 + [6.0] * 45}
    some = [{"node": node, "round": i, "result": {"slice_ms": times[node] if i < fast_rounds else [5.0 if node == "node1" else 6.0] * 54}}
            for i in range(6) for node in times]
    if fast_rounds == 2:  # less than a tenth of all slices is fast
        for line in some:
            line["result"]["slice_ms"] = line["result"]["slice_ms"] * (1 if line["round"] < 2 else 3)
    assert list(numbers.slow_steps(some, list(times), 0.05, 0.001)) == names, fast_rounds
# a node with a fifth less of the processor than others has less of the caches, and may be a tenth slower beyond the margin
for ms, names in (5.8, []), (6.0, ["node2"]):
    for line in lines:
        line["result"]["slice_share"] = [0.8 if line["node"] == "node2" else 1.0] * 12
        line["result"]["slice_ms"] = [ms / 0.8 if line["node"] == "node2" else 5.0] * 12
    assert list(numbers.slow_steps(lines, list(slices), 0.05, 0.001)) == names, ms
# the memory of nodes that share their processors with other work is not judged
def copies_named(share):
    lines = [{"node": node, "round": i, "result": {"kernels": "k", "bits": "1", "backend": "cpu", "images_per_s": 100.0, "slice_ms": [5.0] * 12,
              "slice_share": [1.0] * 12, "processor_share": share, "copy_gb_s": rate * (1 + 0.01 * i)}}
             for i in range(6) for node, rate in (("node1", 9.0), ("node2", 7.0))]
    problems = []
    numbers.judge_nodes(lines, problems, {})
    return problems
assert len(copies_named(0.9)) == 1 and "copy_gb_s" in copies_named(0.9)[0], copies_named(0.9)
assert copies_named(0.5) == []
END
}

JudgesLinksByRoundsOfMostPairs() {
  python3 - "$root/tools" <<'END' || fail 'a slow link was not named'
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import study_numbers as numbers
nodes = ["node1", "node2", "node3", "node4"]
pairs = [(a, b) for i, a in enumerate(nodes) for b in nodes[i + 1:]]
def named(rounds):  # of links of 10 Gbit/s, but for the first of 5, in rounds that have these pairs
    lines = [{"round": i, "nodes": list(pair), "result": {"bandwidth_gbit_s": 5.0 if pair == pairs[0] else 10.0, "message_us": [20.0]}}
             for i, row in enumerate(rounds) for pair in row]
    problems = []
    numbers.judge_pairs(lines, nodes, problems, {})
    return problems
sentence = ["The link between node1 and node2 is slow: 50 % of the usual bandwidth."]
assert named([pairs]) == [], "one round may be disturbed"
assert named([pairs, pairs]) == sentence
assert named([pairs, pairs, pairs[:1]]) == sentence, "alone in its round, a slow pair is as fast as the usual"
assert named([pairs, pairs, pairs[:3]]) == sentence
assert named([pairs, pairs[1:], pairs]) == sentence
END
}

"$1"
