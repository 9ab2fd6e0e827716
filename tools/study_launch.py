"""The launches of tools/study: starts programs on nodes, and ends them."""
import collections
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def fail(text, status=2):
    print(f"study: {text}", file=sys.stderr)
    sys.exit(status)


def shortened(text, most=400):
    """Its beginning and its end, since ssh says its error first and a program last."""
    return text if len(text) <= most else f"{text[:most // 2]} … {text[-most // 2:]}"


def note(text):
    print(f"study: {text}", file=sys.stderr, flush=True)


class Failed(Exception):
    """A launch that ended with an error, all that it said, and the limit of a launch that did not end."""

    def __init__(self, text, status, said="", limit_s=None):
        super().__init__(text)
        self.status, self.said, self.limit_s = status, said, limit_s


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
            raise Failed(f"no end after {limit:g} s", 124, limit_s=limit) from None
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


def kind_of(line):
    """What a measurement is one of: launches of one kind take about as long as each other."""
    if line["part"] == "scaling":
        return f"scaling, {line['nodes']} {'node' if line['nodes'] == 1 else 'nodes'}, {line['batch']} images per rank"
    names = {"node": "nodes", "sums": "all-reduce over all nodes", "pair": "pairs of nodes", "accuracy": "trainings"}
    return names.get(line["part"], line["part"])


class Budget:
    """The time of a study (--minutes), and what it leaves out because that time is over.

    The first turn of each measurement is always made, within the limit of its launch. Another launch starts only if the longest
    launch of its kind fits into the time that is left, and it is cut off at the end of that time. `lines` are those of earlier starts,
    whose time counts, too.
    """

    def __init__(self, minutes, lines):
        self.minutes, self.begin_s = minutes, time.monotonic()
        self.earlier_s = max((line.get("spent_s", 0.0) for line in lines), default=0.0)
        self.longest_s, self.made, self.left_out = {}, collections.Counter(), collections.Counter()
        for line in lines:
            if "result" in line:
                self.count(line)

    def spent_s(self):
        return self.earlier_s + time.monotonic() - self.begin_s

    def left_s(self):
        return 60 * self.minutes - self.spent_s()

    def count(self, line):
        if "result" in line:
            kind = kind_of(line)
            self.made[kind] += 1
            self.longest_s[kind] = max(self.longest_s.get(kind, 0.0), line["seconds"])
        elif "cut_off" in line:
            self.left_out[kind_of(line)] += 1

    def admits(self, line, turn):
        kind = kind_of(line)
        if turn == 0 or self.left_s() > self.longest_s.get(kind, 0.0):
            return True
        if kind not in self.left_out:
            note(f"no time is left for more launches: {kind}")
        self.left_out[kind] += 1
        return False

    def limit_s(self, turn, usual_s):
        """The limit of a launch: after the first turn at most what is left."""
        return usual_s if turn == 0 else min(usual_s, max(0.0, self.left_s()))

    def summary(self):
        """`time` of study.json."""
        return {"minutes": self.minutes, "spent_s": round(self.spent_s(), 1),
                "stopped": [{"what": kind, "launches": self.made[kind], "left_out": count} for kind, count in self.left_out.items()]}
