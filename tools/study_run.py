"""The measurements of tools/study: starts programs on nodes, and records each as a line of raw.jsonl."""
import concurrent.futures
import contextlib
import datetime
import fcntl
import itertools
import json
import math
import os
import random
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import threading
import time

import files
import study_numbers as numbers
import study_page
from study_launch import ROOT, Budget, Failed, Launcher, fail, note

STYLE = os.path.join(ROOT, "src", "page", "page.css")
SETTINGS = ["hosts", "nodes", "ranks", "model", "device", "threads", "batch_size", "global_batch", "seconds", "rounds", "sizes", "train",
            "target", "apart"]  # what a resumed study must share with its first start
LONG = 10  # times --timeout is the limit of a launch that sums all sizes by all algorithms, and the least one of the first training
RAW_VERSION, SHOWN_AFTER_S = 2, 60  # of raw.jsonl; how long an NFS client may believe its cache (acdirmax)


class Study:
    """The lines of a study, and the measurements that add to them."""

    def __init__(self, args):
        self.args, self.lines, self.lock, self.numbers = args, [], threading.RLock(), itertools.count()
        self.launcher, self.lost, self.made = Launcher(args), set(), []
        self.trained = set()  # seeds of this start and of earlier ones
        self.raw = os.path.join(args.out, "raw.jsonl")
        settings = {name: getattr(args, name) for name in SETTINGS}
        self.hold()
        first, self.lines = read_raw(self.raw) if os.path.getsize(self.raw) else (None, [])
        if any("result" in line for line in self.lines):
            for name, value in settings.items():
                if first["settings"].get(name) != value:
                    fail(f"{args.out} holds a study with another {'--' + name.replace('_', '-')} ({first['settings'].get(name)}, not "
                         f"{value}); resume it with its own options, or name another folder with --out")
            self.settings = first["settings"]
        else:  # without a result, begin anew: a mistyped option must not stay with the folder
            self.settings, self.lines = {**settings, "began": now(), "command": shlex.join(sys.argv), "commit": commit()}, []
            os.truncate(self.raw, 0)
            self.append({"format": numbers.FORMAT + " raw", "version": RAW_VERSION, "settings": self.settings})
        self.done = {line["key"] for line in self.lines if "result" in line}
        self.trained.update(line["seed"] for line in self.lines if line["part"] == "accuracy" and "result" in line)
        self.budget = Budget(args.minutes, self.lines)

    def hold(self):
        """Makes raw.jsonl, and keeps other studies out of the folder until this one ends."""
        if os.path.exists(self.args.out) and not os.path.isdir(self.args.out):
            fail(f"--out {self.args.out} is a file; name a folder, which may be new")
        with contextlib.suppress(OSError):  # what cannot be listed cannot be written either
            found = os.listdir(self.args.out)
            if found and "raw.jsonl" not in found and "study.json" not in found:
                fail(f"--out {self.args.out} holds files, but no study; name a new or empty folder, or one of a study")
        folder = self.args.out
        while not os.path.exists(folder):
            self.made.append(folder)
            folder = os.path.dirname(folder)
        try:
            os.makedirs(self.args.out, exist_ok=True)
            self.held = open(self.raw, "a", encoding="utf-8")
        except OSError as error:
            fail(f"{self.raw} cannot be written: {error.strerror}; name another folder with --out")
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fail(f"another study is measuring in {self.args.out}; wait until it ends, or name another folder with --out")
        except OSError:
            note("this file system has no locks, so do not start two studies in one folder")

    def leave_nothing(self):
        """Removes what a study without a result has made."""
        with self.lock, contextlib.suppress(OSError):  # others may have put files there
            if not any("result" in line for line in self.lines):
                os.unlink(self.raw)
                for folder in self.made:
                    os.rmdir(folder)

    def append(self, line):
        with self.lock, open(self.raw, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def record(self, line):
        line["spent_s"] = round(self.budget.spent_s(), 1)
        self.append(line)
        with self.lock:
            self.lines.append(line)
            self.budget.count(line)
            if "result" in line:
                self.done.add(line["key"])

    def alive(self):
        return [node for node in self.args.hosts if node not in self.lost]

    def measure(self, part, hosts, program, read, turn, limit=None, per_node=None, **more):
        """One measurement, unless it is done, a node of it is lost or its time is over. `read` turns the output of the program into
        the result. `limit` is in seconds, that of --timeout if it is None."""
        key = " ".join([part, "+".join(hosts)] + [f"{name}={value}" for name, value in more.items()])
        if key in self.done or self.lost.intersection(hosts):
            return
        line = {"key": key, "part": part, **more, "command": shlex.join(program), "began": now()}
        line.setdefault("nodes", hosts)
        if len(hosts) == 1:
            line["node"] = hosts[0]
        with self.lock:
            if not self.budget.admits(line, turn):
                return
        begin, usual_s = time.monotonic(), limit or self.args.timeout
        note(key)
        try:
            line["result"] = read(self.launcher.run(hosts, program, per_node, self.budget.limit_s(turn, usual_s)))
        except (Failed, OSError, ValueError, KeyError, IndexError, StopIteration, ZeroDivisionError) as error:
            if getattr(error, "status", 1) == 2:
                self.leave_nothing()
                fail(f"{key} cannot start: {error}")
            limit_s = getattr(error, "limit_s", None)
            if turn > 0 and limit_s is not None and limit_s < usual_s:
                line["cut_off"] = True
                note(f"{key} is cut off: the time of --minutes is over")
            else:
                line["error"] = f"{key} failed: {error}"
                if getattr(error, "said", ""):
                    line["said"] = error.said[-20000:]
                note(line["error"])
                self.look_for_lost(hosts)
        self.record({**line, "seconds": round(time.monotonic() - begin, 3)})

    def turns(self):
        """How often at most a part measures. A study takes a turn of each part after the other, so time that runs out shortens all
        parts alike, and each has its first turn."""
        return max(self.args.rounds, self.args.repeats, self.args.seeds)

    def look_for_lost(self, nodes):
        """After a failure: a node that cannot start a program is left out from here on."""
        for node in [] if self.args.grouped else nodes:
            if node not in self.lost and not self.launcher.answers(node):
                self.lost.add(node)
                self.record({"key": f"lost {node}", "part": "lost", "node": node,
                             "error": f"{node} does not answer since {now()}; the study continues without it."})
                note(f"{node} does not answer; the study continues without it")

    def look_for_returned(self):
        for node in {line["node"] for line in self.lines if line["part"] == "lost"}:
            answers = self.launcher.answers(node)
            line = {"key": f"lost {node}", "part": "lost", "node": node}
            error = {"error": f"{node} does not answer; the study continues without it."}
            self.record({**line, **({"back": now()} if answers else error)})
            if not answers:
                self.lost.add(node)

    def each(self, tasks):
        """Runs the tasks in turn, or with --together those of disjoint nodes at once."""
        if not self.args.together:
            for task in tasks:
                task()
            return
        with concurrent.futures.ThreadPoolExecutor(max_workers=64) as pool:
            for future in [pool.submit(task) for task in tasks]:
                future.result()

    def json_of(self, name, program):
        """The program with --json of a new file, and how to read it. NFS may remember for a minute that a name did not exist."""
        path = os.path.join(self.args.out, f".{re.sub('[^A-Za-z0-9]+', '_', name)}_{os.getpid()}_{next(self.numbers)}.json")

        def read(_):
            with open_written(path) as file:
                found = [json.loads(line) for line in file]
            os.unlink(path)
            return found

        return [*program, "--json", path], read

    def bench(self, what, *options):
        return [os.path.join(self.args.build, "cifar_mpi_bench"), what, *map(str, options)]

    def step(self, batch):
        return self.bench("step", "--model", self.args.model, "--device", self.args.device, "--threads", self.args.threads,
                          "--batch-size", batch, "--rounds", 3, "--seconds", self.args.seconds / 4)

    def shuffled(self, items, name):
        items = list(items)
        random.Random(f"{name} {self.args.hosts}").shuffle(items)
        return items

    def measure_node(self, node, round_):
        program, read = self.json_of(f"node {node}", self.step(self.args.batch_size))

        def with_sum(_):
            step = read(_)[0]
            if "slice_ms" not in step:
                fail(f"{program[0]} is older than this tools/study; build it again")
            kept = ("program", "backend", "kernels", "bits", "slice_ms", "slice_share")
            result = {name: step[name] for name in kept if name in step}
            for name in ("images_per_s", "processor_share", "peak_gflops", "copy_gb_s"):
                if name in step:  # a GPU's speed does not depend on its share of processors
                    result[name] = step[name][1]
            if self.args.ranks > 1:
                summing, read_sum = self.json_of(f"node sum {node}", self.sums("4M", "auto"))
                self.launcher.run([node], summing, None, self.budget.limit_s(round_, self.args.timeout))
                result["sum_us"] = read_sum("")[0]["median_us"]
            return result

        self.measure("node", [node], program, with_sum, round_, round=round_)

    def nodes(self, round_):
        if round_ < self.args.rounds:
            nodes = self.alive()[:1] if self.args.grouped else self.shuffled(self.alive(), f"nodes {round_}")
            self.each([lambda node=node: self.measure_node(node, round_) for node in nodes])

    def sums(self, sizes, algorithms=None):
        return self.bench("allreduce", "--device", self.args.device if self.args.device == "cuda" else "cpu", "--sizes", sizes,
                          "--seconds", self.args.seconds / 4, *(["--algorithms", algorithms] if algorithms else []))

    def links(self, round_):
        if round_ >= self.args.rounds:
            return
        program, read = self.json_of("sums", self.sums(self.args.sizes))
        if len(self.alive()) * self.args.ranks > 1:
            self.measure("sums", self.alive(), program, read, round_, LONG * self.args.timeout, round=round_)
        if self.args.grouped:
            if round_ == 0:
                note("all nodes are this machine, so there are no links to measure")
            return
        for pairs in tournament(self.shuffled(self.alive(), f"links {round_}")):
            self.each([lambda pair=pair: self.measure_link("pair", sorted(pair, key=self.args.hosts.index), round_) for pair in pairs])
        if len(self.alive()) > 1:
            self.measure_link("links", self.alive(), 0, round_)  # once, and again if a node is lost
            found = [line["result"] for line in self.lines if line["part"] == "links" and "result" in line]
            if found:
                files.replace(os.path.join(self.args.out, "links.json"), (json.dumps(found[-1]) + "\n").encode())

    def measure_link(self, part, nodes, round_, turn=None):
        program, read = self.json_of(f"{part} {' '.join(nodes)}", self.bench("links", "--seconds", self.args.seconds / 20))
        self.measure(part, nodes, program, lambda said: read(said)[0], round_ if turn is None else turn, per_node=1, round=round_)

    def scaling(self, repeat):
        """A launch of each point, in random order, whose interval is not narrow enough; at most --repeats of them."""
        sizes = [nodes for nodes in self.args.nodes if nodes <= len(self.alive())]
        points = {(nodes, batch) for nodes in sizes
                  for batch in (self.args.batch_size, self.args.global_batch // (nodes * self.args.ranks))}
        for nodes, batch in self.shuffled(sorted(points), f"scaling {repeat}") if repeat < self.args.repeats else []:
            hosts = self.alive()[:nodes]
            if len(hosts) < nodes or self.precise(nodes, batch):
                continue
            program, read = self.json_of("scaling", self.step(batch))
            self.measure("scaling", hosts, program, lambda said, read=read: read(said)[0], repeat, nodes=nodes, batch=batch, repeat=repeat)

    def precise(self, nodes, batch):
        speeds = [line["result"]["images_per_s"][1] for line in self.lines
                  if line["part"] == "scaling" and "result" in line and (line["nodes"], line["batch"]) == (nodes, batch)]
        if len(speeds) < numbers.SMALLEST:
            return False
        found = numbers.interval(speeds)
        return found["high"] - found["low"] < 0.05 * found["median"]

    def ways(self, round_):
        """Ways to update on all nodes; each rank sleeps for the time of a batch in the first round of the part nodes."""
        hosts = self.alive()
        if round_ >= self.args.rounds or not hosts:
            return
        speeds = [line["result"]["images_per_s"] for line in self.lines
                  if line["part"] == "node" and line["round"] == 0 and "result" in line]
        ms = [f"{max(0.1, 1e3 * self.args.batch_size * self.args.ranks / statistics.median(speeds)):.4g}"] if speeds else []
        program = self.bench("ways", "--ways", ",".join(self.args.ways), "--model", self.args.model, "--batch-size", self.args.batch_size,
                             "--slow-factor", 1, "--seconds", self.args.seconds / 4, *(["--compute-ms", *ms] if ms else []))
        self.measure("ways", hosts, program, lambda said: read_ways(said, self.args.ways), round_, round=round_,
                     ways=",".join(self.args.ways))

    def accuracy(self, turn):
        """Trains the next seed on all nodes, or with --apart the next seeds, each on a node of its own."""
        nodes = self.alive()
        now_ = [seed for seed in range(1, self.args.seeds + 1) if seed not in self.trained][:len(nodes) if self.args.apart else 1]
        if not nodes or not now_:
            return
        turn = max(turn, 1) if self.trained else turn  # of all starts, the first training alone is made in any case
        self.trained.update(now_)
        with concurrent.futures.ThreadPoolExecutor(max_workers=len(now_)) as pool:
            list(pool.map(lambda node, seed: self.train([node] if self.args.apart else nodes, seed, turn), nodes, now_))

    def train(self, nodes, seed, turn):
        folder = os.path.join(self.args.out, "accuracy", f"seed_{seed}")
        program = [os.path.join(ROOT, "tools", "study_energy.py"), self.args.powercap,
                   os.path.join(self.args.build, "cifar_mpi_train"), "--model", self.args.model, "--device", self.args.device,
                   "--threads", self.args.threads, "--run-dir", folder, "--seed", str(seed), "--eval-every", "1",
                   *shlex.split(self.args.train)]
        machines = 1 if self.args.grouped else len(nodes)
        limit_s = max(60 * self.args.minutes, LONG * self.args.timeout) if turn == 0 else math.inf  # a later one has the time that is left
        shutil.rmtree(folder, ignore_errors=True)  # of a training that was cut off, whose times say nothing
        self.measure("accuracy", nodes, program, lambda said: read_training(folder, self.args.target, said, machines), turn, limit_s,
                     seed=seed)

    def write(self):
        study = {**numbers.summarize(self.settings, self.lines), "time": self.budget.summary()}
        files.replace(os.path.join(self.args.out, "study.json"), (json.dumps(study, indent=1) + "\n").encode())
        files.replace(os.path.join(self.args.out, "study.html"), study_page.page(study, STYLE).encode())
        return study


def tournament(nodes):
    """Rounds of disjoint pairs in which every node meets every other one (the circle method)."""
    circle = nodes + [None] * (len(nodes) % 2)
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        yield [(a, b) for a, b in zip(circle[:half], reversed(circle[half:])) if a and b]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def open_written(path):
    """Opens a file that a node has written. A file system may take a while to show it; opening its folder asks the server again."""
    for _ in range(SHOWN_AFTER_S):
        try:
            return open(path, encoding="utf-8")
        except FileNotFoundError:
            time.sleep(1)
            with contextlib.suppress(OSError):
                os.listdir(os.path.dirname(path))
    return open(path, encoding="utf-8")


def read_ways(said, ways):
    """The rows of cifar_mpi_bench ways."""
    rows = [dict(zip(("way", "ranks", "images_per_step", "slow", "ms_per_step", "computed_per_s", "images_per_s"), line.split()))
            for line in said.splitlines() if line.split(" ")[0] in ways]
    if [row["way"] for row in rows] != ways:
        raise ValueError("cifar_mpi_bench did not report all ways")
    return [{"way": row["way"], "ranks": row["ranks"], "ms_per_step": float(row["ms_per_step"]), "images_per_s": float(row["images_per_s"])}
            for row in rows]


def read_training(folder, target, said, machines):
    """Accuracy in %, and seconds to the target; writes the evaluations in DAWNBench's form."""
    with open_written(os.path.join(folder, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    steps = [line for line in lines if "seconds" in line]
    evaluations = [line for line in lines if "test_accuracy" in line]
    if not evaluations or not steps:
        raise ValueError(f"{folder}/metrics.jsonl has no test accuracy or no log line")
    rows = []
    for line in evaluations:
        nearest = min(steps, key=lambda step: abs(step["step"] - line["step"]))
        rows.append((line["epoch"], nearest["seconds"] * line["step"] / nearest["step"], 100 * line["test_accuracy"]))
    with open(os.path.join(folder, "dawnbench.tsv"), "w", encoding="ascii") as file:
        file.write("epoch\thours\ttop1Accuracy\n" + "".join(f"{e:g}\t{s / 3600:.8f}\t{a:.2f}\n" for e, s, a in rows))
    batch = next(line["global_batch"] for line in lines if "global_batch" in line)
    energy = [json.loads(text) for text in re.findall(r"^cifar_mpi energy: (.*)$", said, re.M)]
    return {"accuracy": rows[-1][2], "seconds": rows[-1][1], "images": evaluations[-1]["step"] * batch,
            "seconds_to_target": next((seconds for _, seconds, accuracy in rows if accuracy >= target), None), "energy": energy,
            "machines": machines}


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def commit():
    try:
        found = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    except OSError:
        return None  # no git, as in an installed tree
    return found.stdout.strip() or None


def read_raw(path):
    """The head and the lines; a last line that was cut off does not count."""
    try:
        with open(path, encoding="utf-8") as file:
            texts = file.read().split("\n")
        lines = [json.loads(text) for text in texts[:-1]]
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be read: {error}")
    if not lines or lines[0].get("format") != numbers.FORMAT + " raw" or lines[0].get("version") != RAW_VERSION:
        fail(f"{path} is not of a study of version {RAW_VERSION}; name another folder with --out")
    if texts[-1]:
        with open(path, "r+", encoding="utf-8") as file:
            file.truncate(sum(len(text.encode()) + 1 for text in texts[:-1]))
    return lines[0], lines[1:]
