"""From the raw lines of tools/study to its result: medians with intervals, who is slow or differs, efficiencies, accuracy, energy."""
import math
import statistics
from collections import defaultdict

FORMAT, VERSION = "cifar_mpi study", 2
SMALLEST = 6  # of fewer values, the range from least to most is no 95 % interval of the median
SIGNIFICANT = 0.01  # the chance of naming any node if all are equal, divided among nodes and what they are measured by
BLOCKS = 6  # parts of a launch in which nodes are compared
# Of what a node is measured by: the unit, whether more is better, and the share by which it must be worse than the median of the
# other nodes before it is named: its fastest steps (images_per_s) or all its rounds.
NODE_METRICS = {"images_per_s": ("images/s", True, 0.05), "peak_gflops": ("GFLOP/s", True, 0.05),
                "copy_gb_s": ("GB/s", True, 0.1), "sum_us": ("us", False, 0.3)}
CACHES = 0.5  # of the processor time that other work takes from a node, the share that its steps may be slower: it takes caches, too
LESS_PROCESSOR = 0.05  # the share by which a node's part of the processor time must be less than the others' before it is named
SHARED = 0.8  # of a node's processor time; a node that gets less does not show how fast its memory is, because other work uses it, too
SLOW_LINK = 0.7  # of the links' usual bandwidth


def interval(values):
    """Median and 95 % interval of the median, from order statistics; the range where there are fewer than SMALLEST values."""
    values, n = sorted(values), len(values)
    below, k = 0.5**n, 0  # the chance that at most k values are below the median
    while below + math.comb(n, k + 1) * 0.5**n <= 0.025:
        k += 1
        below += math.comb(n, k) * 0.5**n
    return {"median": statistics.median(values), "low": values[k], "high": values[n - 1 - k], "n": n}


def t_tail(t, freedom):
    """The chance of a value above t of Student's distribution: Simpson's rule after the substitution t = tan(angle) * sqrt(freedom)."""
    begin, steps = math.atan(t / math.sqrt(freedom)), 400
    width = (math.pi / 2 - begin) / steps
    weights = (1 if i in (0, steps) else 4 if i % 2 else 2 for i in range(steps + 1))
    area = sum(w * max(0.0, math.cos(begin + i * width)) ** (freedom - 1) for i, w in enumerate(weights)) * width / 3
    return area * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


def mean_interval(values):
    """Mean and 95 % interval by Student's distribution; needs two values."""
    n, mean = len(values), statistics.mean(values)
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, n - 1) > 0.025 else (low, middle)
    half = low * statistics.stdev(values) / math.sqrt(n)
    return {"mean": mean, "low": mean - half, "high": mean + half, "deviation": statistics.stdev(values), "n": n}


def percent(share):
    return f"{100 * share:.0f} %"


def counted(n, thing, plural="s"):
    return f"{n} {thing}{'' if n == 1 else plural}"


def by(lines, *names):
    """The results of the lines, grouped by the values of these keys."""
    groups = defaultdict(list)
    for line in lines:
        key = tuple(tuple(line[name]) if isinstance(line[name], list) else line[name] for name in names)
        groups[key if len(names) > 1 else key[0]].append(line["result"])
    return groups


def relative(values, better):
    """Per node, the ratio of its value to the median of the others in each round, above 1 where it is better.

    values: {round: {node: value}}.
    """
    ratios = defaultdict(list)
    for row in values.values():
        for node, value in row.items():
            others = [x for other, x in row.items() if other != node]
            if others:
                middle = statistics.median(others)
                ratios[node].append(value / middle if better else middle / value)
    return ratios


def is_worse(ratios, margin, chance):
    """Whether all ratios are below 1 - margin, and together by more than their spread explains (t-test of their logarithms)."""
    if len(ratios) < 2 or max(ratios) >= 1 - margin:
        return False
    logs = [-math.log(ratio) for ratio in ratios]
    spread = statistics.stdev(logs)
    return not spread or t_tail(statistics.mean(logs) / spread * math.sqrt(len(logs)), len(logs) - 1) < chance


def judge_bits(lines, problems):
    """Nodes with one kernel plan must agree on every bit, and each with itself."""
    plans = defaultdict(lambda: defaultdict(set))
    for line in lines:
        plans[line["result"]["kernels"], line["result"].get("program")][line["node"]].add(line["result"]["bits"])
    for nodes in plans.values():
        for node, bits in nodes.items():
            if len(bits) > 1:
                problems.append(f"{node} computes other bits from one run to the next: its memory or processor is faulty.")
        steady = {node: next(iter(bits)) for node, bits in nodes.items() if len(bits) == 1}
        if len(set(steady.values())) < 2:
            continue
        usual = statistics.mode(steady.values())
        alone = [node for node, bits in steady.items() if bits != usual]
        if 2 * len(alone) < len(steady):
            problems += [f"{node} computes other bits than the other nodes with the same kernels." for node in alone]
        else:
            problems.append(f"{', '.join(sorted(steady))} disagree on the bits of a step; no majority shows which of them is right.")
    kernels = {name for name, _ in plans}
    if len(kernels) > 1:
        problems.append(f"The nodes use {len(kernels)} different kernel plans, so their bits are compared within each plan alone.")


def rounds_of(lines, name):
    """{round: {node: value}} of what the lines have."""
    values = defaultdict(dict)
    for line in lines:
        if line["result"].get(name) is not None:
            values[line["round"]][line["node"]] = line["result"][name]
    return values


def fast(times):
    """Their 10 % quantile. Other work and other virtual machines only ever slow a node, so its fastest steps show the node itself."""
    return sorted(times)[len(times) // 10]


def slices_of(lines):
    """{round: {node: times of its slices}}, as if each rank had its processors alone, and {node: its share of the processors}."""
    values, total = defaultdict(dict), defaultdict(lambda: [0.0, 0.0])
    for line in lines:
        node, times = line["node"], line["result"]["slice_ms"]
        shares = line["result"].get("slice_share", [1.0] * len(times))  # a GPU's speed does not depend on it
        values[line["round"]][node] = [ms * share for ms, share in zip(times, shares)]
        total[node][0] += sum(values[line["round"]][node])
        total[node][1] += sum(times)
    return values, {node: got / time for node, (got, time) in total.items()}


def blocks_of(times):
    found = [times[i * len(times) // BLOCKS:(i + 1) * len(times) // BLOCKS] for i in range(BLOCKS)]
    return [fast(block) if block else None for block in found]


def sign_tail(worse, n):
    """The chance that at least so many of n are worse, if each is with one half."""
    return sum(math.comb(n, k) for k in range(worse, n + 1)) / 2**n


def slow_steps(lines, nodes, margin, chance):
    """{node: (share by which its fastest steps are slower, blocks in which they are, blocks)} of the slow nodes.

    The fastest steps of all rounds and of each round are compared with the median of the other nodes, and by a sign test those of
    each block.
    """
    (rounds, shares), found = slices_of(lines), {}

    def of_others(node, values):
        return statistics.median(value for other, value in values.items() if other != node)

    for node in nodes if len(nodes) > 1 else []:
        its_rounds = [row for row in rounds.values() if node in row and len(row) > 1]  # a round that ends early lacks nodes
        fastest = {other: fast(times) for other in nodes if (times := [time for row in its_rounds for time in row.get(other, [])])}
        if not its_rounds:
            continue
        less = max(0.0, 1 - shares[node] / (of_others(node, shares) or 1.0))
        share = 1 - of_others(node, fastest) / fastest[node] if fastest[node] else 0.0
        # a launch may be slow from its start to its end, for example by where its memory lies
        slower = [fast(row[node]) > of_others(node, {other: fast(times) for other, times in row.items()})
                  for row in rounds.values() if node in row and len(row) > 1]
        worse, n = 0, 0
        for row in rounds.values():
            others = [blocks_of(times) for other, times in row.items() if other != node]
            for i, own in enumerate(blocks_of(row.get(node, []))):
                same = [blocks[i] for blocks in others if blocks[i] is not None]
                if own is not None and same:
                    worse, n = worse + (own > statistics.median(same)), n + 1
        if slower.count(False) <= len(slower) // SMALLEST and share > margin + CACHES * less and sign_tail(worse, n) < chance:
            found[node] = share, worse, n
    return found


def judge_nodes(lines, problems, metrics):
    nodes = {}
    judge_bits(lines, problems)
    for line in lines:
        nodes.setdefault(line["node"], {"bits": line["result"]["bits"], "backend": line["result"]["backend"]})
    shares, busy = rounds_of(lines, "processor_share"), set()
    chance = SIGNIFICANT / max(1, len(nodes) * (len(NODE_METRICS) + 1))  # and the share of the processor
    for node in nodes:
        own = [row[node] for row in shares.values() if node in row]
        if own:
            nodes[node]["processor_share"] = interval(own)
    for node, ratios in relative(shares, True).items():
        if is_worse(ratios, LESS_PROCESSOR, chance):
            busy.add(node)
            problems.append(f"{node} gets {percent(1 - statistics.median(ratios))} less processor time than the median of the other nodes, "
                            f"in each of {len(ratios)} rounds: other work or a limit takes it, or threads wait for a slower core. "
                            "End other work, and measure again; if it stays, check the cores.")
    for node, (share, worse, n) in slow_steps(lines, nodes, NODE_METRICS["images_per_s"][2], chance).items():
        problems.append(f"{node} is {percent(share)} worse than the median of the other nodes in images_per_s (images/s) by their fastest "
                        f"steps, and worse in {worse} of {n} parts of the measurement.")
    for name, (unit, better, margin) in NODE_METRICS.items():
        values = rounds_of(lines, name)
        judged = values
        if name == "copy_gb_s":
            judged = {round_: {node: value for node, value in row.items() if shares[round_].get(node, 1.0) >= SHARED and node not in busy}
                      for round_, row in values.items()}
        ratios = relative(judged, better)
        for node in nodes:
            own = [row[node] for row in values.values() if node in row]
            if not own:
                continue
            nodes[node][name] = metrics[f"node {node}: {name}"] = {"unit": unit, **interval(own)}
            if name == "images_per_s":  # judged by slices of its rounds
                continue
            if is_worse(ratios[node], margin, chance):
                problems.append(f"{node} is {percent(1 - statistics.median(ratios[node]))} worse than the median of the other nodes in "
                                f"{name} ({unit}), and worse in each of {len(ratios[node])} rounds.")
    return nodes


def judge_pairs(lines, hosts, problems, metrics):
    """A pair is slow if in every round it has less than SLOW_LINK of the usual: the median, over nodes, of a node's best pair."""
    rounds, pairs = defaultdict(dict), {}
    for line in lines:
        rounds[line["round"]][tuple(line["nodes"])] = line["result"]["bandwidth_gbit_s"]
    shares, most = defaultdict(list), max(map(len, rounds.values()), default=0)
    for row in rounds.values():
        if 4 * len(row) < 3 * most:
            continue  # a round that was cut off; few pairs do not show what is usual
        best = {node: max(rate for pair, rate in row.items() if node in pair) for pair in row for node in pair}
        for pair, rate in row.items():
            shares[pair].append(rate / statistics.median(best.values()))
    for pair, results in by(lines, "nodes").items():
        name = " - ".join(pair)
        pairs[name] = {"bandwidth_gbit_s": interval([r["bandwidth_gbit_s"] for r in results]),
                       "latency_us": interval([r["message_us"][0] for r in results])}
        metrics[f"pair {name}: bandwidth"] = {"unit": "Gbit/s", **pairs[name]["bandwidth_gbit_s"]}
    slow = [pair for pair, values in shares.items() if len(values) > 1 and max(values) < SLOW_LINK]
    of_node = {node: [pair for pair in shares if node in pair] for node in hosts}
    whole = [node for node, own in of_node.items() if len(own) > 1 and all(pair in slow for pair in own)]
    for node in whole:
        own = of_node[node]
        share = statistics.median(x for pair in own for x in shares[pair])
        problems.append(f"The link of {node} is slow: {percent(share)} of the usual bandwidth, to each of {len(own)} other nodes.")
    problems += [f"The link between {a} and {b} is slow: {percent(statistics.median(shares[a, b]))} of the usual bandwidth."
                 for a, b in slow if a not in whole and b not in whole]
    return pairs


def judge_sums(lines, problems, metrics):
    """Of the nodes of the last launch: times over other nodes, such as those before a node died, are others."""
    rows, wrong = defaultdict(list), set()
    for line in lines:
        for row in line["result"]:
            key = row["bytes"], row["algorithm"]
            if row["wrong"]:
                wrong.add(key)
            if line["nodes"] == lines[-1]["nodes"]:
                rows[key].append(row)
    table = []
    for (size, algorithm), found in sorted(rows.items()):
        median = interval([row["median_us"] for row in found])
        of_mpi = [row["median_us"] / row["mpi_allreduce_us"] for row in found if row.get("mpi_allreduce_us")]
        table.append({"bytes": size, "algorithm": algorithm, "nodes": len(lines[-1]["nodes"]), "median_us": median,
                      "p99_us": max(row["p99_us"] for row in found),
                      "busbw_gb_s": statistics.median(row["busbw_gb_s"] for row in found),
                      "of_mpi": statistics.median(of_mpi) if of_mpi else None})
        metrics[f"all-reduce {algorithm}, {size} bytes"] = {"unit": "us", **median}
    problems += [f"The all-reduce {algorithm} of {size} bytes gave wrong sums." for size, algorithm in sorted(wrong)]
    return table


def judge_ways(lines, metrics):
    """Of the nodes of the last launch; images/s count images whose gradients were applied."""
    rows = defaultdict(list)
    for line in lines:
        if line["nodes"] == lines[-1]["nodes"]:
            for row in line["result"]:
                rows[row["way"]].append(row)
    table = []
    for way, found in rows.items():
        speed = interval([row["images_per_s"] for row in found])
        table.append({"way": way, "ranks": found[-1]["ranks"], "nodes": len(lines[-1]["nodes"]), "images_per_s": speed,
                      "ms_per_step": interval([row["ms_per_step"] for row in found])})
        metrics[f"way {way}"] = {"unit": "images/s", **speed}
    return table


def judge_scaling(lines, settings, metrics):
    """Scaling efficiency = images/s per node over that on the fewest nodes; communication = share of a step that it takes less without
    all-reduces (none where noise makes it take more)."""
    points = by(lines, "nodes", "batch")
    scaling = {}
    for mode in ("strong", "weak"):
        rows = []
        for nodes in settings["nodes"]:
            batch = settings["batch_size"] if mode == "weak" else settings["global_batch"] // (nodes * settings["ranks"])
            results = points.get((nodes, batch))
            if not results:
                continue
            speed = interval([r["images_per_s"][1] for r in results])
            metrics[f"{mode} scaling, {counted(nodes, 'node')}"] = {"unit": "images/s", **speed}
            talk = max(0.0, statistics.median(1.0 - r["alone_ms"][1] / r["step_ms"][1] if "alone_ms" in r else 0.0 for r in results))
            first = rows[0] if rows else {"nodes": nodes, "images_per_s": speed}
            efficiency = speed["median"] / nodes / (first["images_per_s"]["median"] / first["nodes"])
            rows.append({"nodes": nodes, "ranks": nodes * settings["ranks"], "batch_per_rank": batch, "images_per_s": speed,
                         "efficiency": efficiency, "communication": talk, "verdict": verdict(mode, efficiency, talk, len(rows))})
        scaling[mode] = rows
    return scaling


def verdict(mode, efficiency, talk, before):
    if not before:
        return "the reference"
    if efficiency >= 0.9:
        return "scales well"
    if 1.0 - talk < math.sqrt(efficiency):
        return "communication that the step does not hide costs most"
    return "ranks compute less efficiently on smaller batches" if mode == "strong" else "ranks compute more slowly than on fewer nodes"


def judge_accuracy(lines, settings, metrics):
    if not lines:
        return None
    runs = [{"seed": line["seed"], **line["result"]} for line in lines]
    result = {"target": settings["target"], "runs": runs}
    final = [run["accuracy"] for run in runs]
    if len(runs) > 1:
        result["accuracy"] = mean_interval(final)
        metrics["accuracy at the end"] = {"unit": "%", "median": result["accuracy"]["mean"], "low": result["accuracy"]["low"],
                                          "high": result["accuracy"]["high"], "n": len(runs)}
        deviation = result["accuracy"]["deviation"]
        gap = statistics.mean(final) - settings["target"]
        if deviation:
            result["p"] = t_tail(gap / deviation * math.sqrt(len(runs)), len(runs) - 1)
        else:
            result["p"] = 0.0 if gap > 0 else 1.0
    reached = [run["seconds_to_target"] for run in runs if run["seconds_to_target"] is not None]
    if len(reached) == len(runs):
        result["seconds_to_target"] = interval(reached)
        metrics["time to the target"] = {"unit": "s", **result["seconds_to_target"]}
    return result


def judge_energy(lines, metrics):
    """Joules per image and to the target, of runs whose nodes could all be read."""
    if not lines:
        return None
    runs = [line["result"] for line in lines]
    unread = sorted({f"{r['host']}: {text}" for run in runs for r in run["energy"] for text in r["unread"]})
    whole = []
    for run in runs:
        energy, machines = run["energy"], run.get("machines", 1)
        if len(energy) < machines:
            others = "; these did: " + ", ".join(reading["host"] for reading in energy) if energy else ""
            unread.append(f"{machines - len(energy)} of {machines} nodes printed no energy{others}")
        elif all(reading["joules"] is not None for reading in energy):
            whole.append(run)
    result = {"unread": list(dict.fromkeys(unread))}
    joules = [sum(r["joules"] for r in run["energy"]) for run in whole]
    if whole:
        result["joules_per_image"] = interval([j / run["images"] for j, run in zip(joules, whole)])
        metrics["energy per image"] = {"unit": "J", **result["joules_per_image"]}
        to_target = [j * run["seconds_to_target"] / run["seconds"] for j, run in zip(joules, whole)
                     if run["seconds_to_target"] is not None]
        if len(to_target) == len(whole):
            result["joules_to_target"] = interval(to_target)
            metrics["energy to the target"] = {"unit": "J", **result["joules_to_target"]}
    return result


def paragraph(study):
    """For a paper."""
    settings, program = study["settings"], study["program"] or "cifar_mpi"
    text = (f"Measured with cifar_mpi {program} and its tools/study on {counted(len(settings['hosts']), 'node')} with "
            f"{counted(settings['ranks'], 'rank')} each ({study['backend'] or 'backend unknown'}), model {settings['model']}, {settings['batch_size']} images per rank. "
            "Figures are medians with 95 % intervals of the median over launches in random order; of fewer than 6 launches, ranges. ")
    for mode, rows in study["scaling"].items():
        if len(rows) > 1:
            last = rows[-1]
            speed = last["images_per_s"]
            text += (f"With {mode} scaling, {last['nodes']} nodes computed {speed['median']:.0f} images/s ({speed['low']:.0f} to "
                     f"{speed['high']:.0f}, {counted(speed['n'], 'launch', 'es')}), a scaling efficiency of {percent(last['efficiency'])}. ")
    accuracy = study["accuracy"]
    if accuracy and "accuracy" in accuracy:
        found = accuracy["accuracy"]
        text += (f"Over {found['n']} seeds the test accuracy was {found['mean']:.2f} % (95 % interval of the mean {found['low']:.2f} to "
                 f"{found['high']:.2f}); that the mean exceeds {accuracy['target']:g} % has p = {accuracy['p']:.3g} (one-sided t-test).")
    return text.strip()


def summarize(settings, lines):
    """study.json of the raw lines; of several lines of one measurement the last counts, and failures are listed."""
    newest = {}
    for line in lines:
        if "cut_off" not in line or line["key"] not in newest:
            newest[line["key"]] = line
    good = [line for line in newest.values() if "result" in line]
    good.sort(key=lambda line: [settings["hosts"].index(node) for node in line["nodes"]] if line["part"] in ("node", "pair") else [])
    part = {name: [line for line in good if line["part"] == name] for name in ("node", "pair", "sums", "links", "scaling", "ways", "accuracy")}
    problems = [line["error"] for line in newest.values() if "error" in line]
    metrics = {}
    steps = [line["result"] for line in part["node"] + part["scaling"]]
    study = {"format": FORMAT, "version": VERSION, "settings": settings, "program": steps[0]["program"] if steps else None,
             "backend": steps[0]["backend"] if steps else None,
             "lost": [line["node"] for line in newest.values() if line["part"] == "lost" and "error" in line],
             "nodes": judge_nodes(part["node"], problems, metrics),
             "pairs": judge_pairs(part["pair"], settings["hosts"], problems, metrics),
             "sums": judge_sums(part["sums"], problems, metrics), "links": part["links"][-1]["result"] if part["links"] else None,
             "scaling": judge_scaling(part["scaling"], settings, metrics), "ways": judge_ways(part["ways"], metrics),
             "accuracy": judge_accuracy(part["accuracy"], settings, metrics), "energy": judge_energy(part["accuracy"], metrics)}
    study.update(problems=problems, metrics=metrics)
    study["paragraph"] = paragraph(study)
    return study
