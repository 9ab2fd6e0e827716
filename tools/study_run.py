"""The measurements of tools/study: starts programs on nodes, and records each as a line of raw.jsonl."""
import concurrent.futures
import contextlib
import datetime
import itertools
import json
import os
import random
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

import files
import study_numbers as numbers
import study_page

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
STYLE = os.path.join(ROOT, "src", "page", "page.css")
SETTINGS = ["hosts", "nodes", "ranks", "model", "device", "threads", "batch_size", "global_batch", "seconds", "rounds", "sizes", "train",
            "target", "apart"]  # what a resumed study must share with its first start
SUMS = 10  # times the limit of another launch has the one that sums all sizes by all algorithms
RAW_VERSION, SHOWN_AFTER_S = 2, 60  # of raw.jsonl; how long an NFS client may believe its cache (acdirmax)


def fail(text, status=2):
    print(f"study: {text}", file=sys.stderr)
    sys.exit(status)


def shortened(text, most=400):
    """Its beginning and its end, since ssh says its error first and a program last."""
    return text if len(text) <= most else f"{text[:most // 2]} … {text[-most // 2:]}"


def note(text):
    print(f"study: {text}", file=sys.stderr, flush=True)


class Failed(Exception):
    """A launch that ended with an error, and all that it said."""

    def __init__(self, text, status, said=""):
        super().__init__(text)
        self.status, self.said = status, said


class Launcher:
    """Starts programs on nodes, each in a session of its own; ends them when the study is ended."""

    GRACE_S = 10.0  # from a request to end to the kill, and from there to giving up

    def __init__(self, args):
        self.args, self.children, self.lock = args, set(), threading.RLock()
        self.environment = dict(os.environ)
        if args.grouped and args.ranks * max(args.nodes, default=1) > (os.cpu_count() or 1):
            self.environment["OMPI_MCA_mpi_yield_when_idle"] = "1"

    def command(self, nodes, per_node, program):
        total = str(len(nodes) * per_node)
        if self.args.launcher == "srun":
            return ["srun", "--mpi=pmix", "--overlap", "--overcommit", "--cpu-bind=none", "--kill-on-bad-exit=1",
                    "--nodelist=" + ",".join(nodes), f"--nodes={len(nodes)}", f"--ntasks={total}",
                    f"--ntasks-per-node={per_node}", *program]
        hosts = [] if self.args.grouped else ["--host", ",".join(f"{node}:{per_node}" for node in nodes)]
        script = f". {shlex.quote(ROOT)}/env/mpirun.sh; exec mpirun \"$@\""
        return ["bash", "-c", script, "mpirun", "--oversubscribe", "--bind-to", "none", *hosts, "-np", total, *program]

    def run(self, nodes, program, per_node=None, limit=None):
        command = self.command(nodes, per_node or self.args.ranks, program)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                 stdin=subprocess.DEVNULL, env=self.environment, start_new_session=True)
        with self.lock:
            self.children.add(child)
        try:
            said = child.communicate(timeout=limit)[0]
        except subprocess.TimeoutExpired:
            self.end(child)
            raise Failed(f"no end after {limit:g} s", 124) from None
        finally:
            with self.lock:
                self.children.discard(child)
        if child.returncode:
            own = [line for line in said.splitlines() if re.match(r"cifar_mpi_\w+: ", line)]
            raise Failed(own[-1] if own else f"ended with {child.returncode}: {shortened(' '.join(said.split()))}",
                         child.returncode, said)
        return said

    def end(self, child):
        """Ends a launch and its group in a limited time; leaves a process of another group that holds the pipe."""
        child.terminate()
        late = time.monotonic() + self.GRACE_S
        while child.poll() is None and time.monotonic() < late:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its output must not fill the pipe
                child.communicate(timeout=0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        if not child.stdout.closed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=self.GRACE_S)
            child.stdout.close()

    def stop(self):
        with self.lock:
            for child in self.children:
                child.terminate()
            late = time.monotonic() + self.GRACE_S
            while any(child.poll() is None for child in self.children) and time.monotonic() < late:
                time.sleep(0.1)
            for child in self.children:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)

    def answers(self, node):
        try:
            self.run([node], ["true"], 1, 60)
            return True
        except Failed:
            return False


class Study:
    """The lines of a study, and the measurements that add to them."""

    def __init__(self, args):
        self.args, self.lines, self.lock, self.numbers = args, [], threading.RLock(), itertools.count()
        self.launcher, self.lost = Launcher(args), set()
        self.raw = os.path.join(args.out, "raw.jsonl")
        settings = {name: getattr(args, name) for name in SETTINGS}
        if os.path.exists(self.raw):
            first, self.lines = read_raw(self.raw)
            for name, value in settings.items():
                if first["settings"].get(name) != value:
                    fail(f"{args.out} holds a study with another {'--' + name.replace('_', '-')} ({first['settings'].get(name)}, not "
                         f"{value}); resume it with its own options, or name another folder with --out")
            self.settings = first["settings"]
        else:
            self.settings = {**settings, "began": now(), "command": shlex.join(sys.argv), "commit": commit()}
            try:
                os.makedirs(args.out, exist_ok=True)
                self.append({"format": numbers.FORMAT + " raw", "version": RAW_VERSION, "settings": self.settings})
            except OSError as error:
                fail(f"{self.raw} cannot be written: {error.strerror}; name another folder with --out")
        self.done = {line["key"] for line in self.lines if "result" in line}

    def append(self, line):
        with self.lock, open(self.raw, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def record(self, line):
        self.append(line)
        with self.lock:
            self.lines.append(line)
            if "result" in line:
                self.done.add(line["key"])

    def alive(self):
        return [node for node in self.args.hosts if node not in self.lost]

    def measure(self, part, hosts, program, read, **more):
        """One measurement, unless it is done or a node of it is lost. `read` turns the output of the program into the result."""
        key = " ".join([part, "+".join(hosts)] + [f"{name}={value}" for name, value in more.items() if name not in ("limit", "per_node")])
        if key in self.done or self.lost.intersection(hosts):
            return
        limit, per_node = more.pop("limit", self.args.timeout), more.pop("per_node", None)
        line = {"key": key, "part": part, **more, "command": shlex.join(program), "began": now()}
        line.setdefault("nodes", hosts)
        if len(hosts) == 1:
            line["node"] = hosts[0]
        begin = time.monotonic()
        note(key)
        try:
            line["result"] = read(self.launcher.run(hosts, program, per_node, limit))
        except (Failed, OSError, ValueError, KeyError, IndexError, StopIteration, ZeroDivisionError) as error:
            if getattr(error, "status", 1) == 2:
                fail(f"{program[0]} refused its options: {error}")
            line["error"] = f"{key} failed: {error}"
            if getattr(error, "said", ""):
                line["said"] = error.said[-20000:]
            note(line["error"])
            self.look_for_lost(hosts)
        self.record({**line, "seconds": round(time.monotonic() - begin, 3)})

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
                self.launcher.run([node], summing, None, self.args.timeout)
                result["sum_us"] = read_sum("")[0]["median_us"]
            return result

        self.measure("node", [node], program, with_sum, round=round_)

    def nodes(self):
        for round_ in range(self.args.rounds):
            nodes = self.alive()[:1] if self.args.grouped else self.shuffled(self.alive(), f"nodes {round_}")
            self.each([lambda node=node: self.measure_node(node, round_) for node in nodes])

    def sums(self, sizes, algorithms=None):
        return self.bench("allreduce", "--device", self.args.device if self.args.device == "cuda" else "cpu", "--sizes", sizes,
                          "--seconds", self.args.seconds / 4, *(["--algorithms", algorithms] if algorithms else []))

    def links(self):
        for round_ in range(self.args.rounds):
            program, read = self.json_of("sums", self.sums(self.args.sizes))
            if len(self.alive()) * self.args.ranks > 1:
                self.measure("sums", self.alive(), program, read, round=round_, limit=SUMS * self.args.timeout)
        if self.args.grouped:
            note("all nodes are this machine, so there are no links to measure")
            return
        for round_ in range(self.args.rounds):
            for pairs in tournament(self.shuffled(self.alive(), f"links {round_}")):
                self.each([lambda pair=pair: self.measure_link("pair", sorted(pair, key=self.args.hosts.index), round_) for pair in pairs])
        if len(self.alive()) > 1:
            self.measure_link("links", self.alive(), 0)
            found = [line["result"] for line in self.lines if line["part"] == "links" and "result" in line]
            if found:
                files.replace(os.path.join(self.args.out, "links.json"), (json.dumps(found[-1]) + "\n").encode())

    def measure_link(self, part, nodes, round_):
        program, read = self.json_of(f"{part} {' '.join(nodes)}", self.bench("links", "--seconds", self.args.seconds / 20))
        self.measure(part, nodes, program, lambda said: read(said)[0], round=round_, per_node=1)

    def scaling(self):
        """Launches of all points in random order, until the interval of each is narrow enough or it has --repeats of them."""
        sizes = [nodes for nodes in self.args.nodes if nodes <= len(self.alive())]
        points = {(nodes, batch) for nodes in sizes
                  for batch in (self.args.batch_size, self.args.global_batch // (nodes * self.args.ranks))}
        for repeat in range(self.args.repeats):
            for nodes, batch in self.shuffled(sorted(points), f"scaling {repeat}"):
                hosts = self.alive()[:nodes]
                if len(hosts) < nodes or self.precise(nodes, batch):
                    continue
                program, read = self.json_of("scaling", self.step(batch))
                self.measure("scaling", hosts, program, lambda said, read=read: read(said)[0], nodes=nodes, batch=batch, repeat=repeat)

    def precise(self, nodes, batch):
        speeds = [line["result"]["images_per_s"][1] for line in self.lines
                  if line["part"] == "scaling" and "result" in line and (line["nodes"], line["batch"]) == (nodes, batch)]
        if len(speeds) < numbers.SMALLEST:
            return False
        found = numbers.interval(speeds)
        return found["high"] - found["low"] < 0.05 * found["median"]

    def ways(self):
        """Ways to update on all nodes; each rank sleeps for the time of a batch in the part nodes."""
        speeds = [line["result"]["images_per_s"] for line in self.lines if line["part"] == "node" and "result" in line]
        ms = [f"{max(0.1, 1e3 * self.args.batch_size * self.args.ranks / statistics.median(speeds)):.4g}"] if speeds else []
        program = self.bench("ways", "--ways", ",".join(self.args.ways), "--model", self.args.model, "--batch-size", self.args.batch_size,
                             "--slow-factor", 1, "--seconds", self.args.seconds / 4, *(["--compute-ms", *ms] if ms else []))
        for round_ in range(self.args.rounds):
            hosts = self.alive()
            if not hosts:
                return
            self.measure("ways", hosts, program, lambda said: read_ways(said, self.args.ways), round=round_,
                         ways=",".join(self.args.ways))

    def accuracy(self):
        """A training per seed: on all nodes in turn, or with --apart each on a node of its own, as many at once as there are nodes."""
        seeds = list(range(1, self.args.seeds + 1))
        if not self.args.apart:
            for seed in seeds:
                self.train(self.alive(), seed)
            return
        left = list(reversed(seeds))

        def train_on(node):
            while node not in self.lost:
                with self.lock:
                    if not left:
                        return
                    seed = left.pop()
                self.train([node], seed)

        nodes = self.alive()
        if nodes:
            with concurrent.futures.ThreadPoolExecutor(max_workers=len(nodes)) as pool:
                list(pool.map(train_on, nodes))

    def train(self, nodes, seed):
        folder = os.path.join(self.args.out, "accuracy", f"seed_{seed}")
        if any(line.get("seed") == seed and "result" in line for line in self.lines) or not nodes:
            return
        shutil.rmtree(folder, ignore_errors=True)  # of a training that was cut off, whose times say nothing
        program = [os.path.join(ROOT, "tools", "study_energy.py"), self.args.powercap,
                   os.path.join(self.args.build, "cifar_mpi_train"), "--model", self.args.model, "--device", self.args.device,
                   "--threads", self.args.threads, "--run-dir", folder, "--seed", str(seed), "--eval-every", "1",
                   *shlex.split(self.args.train)]
        machines = 1 if self.args.grouped else len(nodes)
        self.measure("accuracy", nodes, program, lambda said: read_training(folder, self.args.target, said, machines), seed=seed,
                     limit=None)

    def write(self):
        study = numbers.summarize(self.settings, self.lines)
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
