"""Compares the values of training steps of cifar_mpi_train with PyTorch's in float64: the part of tools/compare_pytorch --values.

The program trains without distortions, with a batch that is the whole training set, and writes a checkpoint after every step.
From each checkpoint PyTorch computes the next in float64: loss, gradients by autograd (in the momentum), weights, averages and
statistics. It shares no code with the program. The bounds follow from the rounding of fp32 alone: `Step.share` for a
gradient, and from there by how each formula passes errors on.
"""
import io
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile

EPS = 2.0**-24  # fp32 rounds a result by at most this part of it
COMPARED = (1, 3, 4, 7)  # steps from 0. fast94: 24 pixels; 28; 32 with normalized matrices; in the tail, without rate for the first biases
IMAGES, STEPS, SMOOTHING, DECAY, EMA = 16, 8, 0.09, 2e-4, 0.99
OPTIONS = ["--global-batch", str(IMAGES), "--epochs", str(STEPS), "--augment", "none", "--input-size", "32", "--normalize", "dataset",
           "--precision", "fp32", "--device", "cpu", "--threads", "1", "--label-smoothing", str(SMOOTHING), "--weight-decay", str(DECAY),
           "--ema-decay", str(EMA), "--checkpoint-every", "1", "--keep", str(STEPS), "--log-every", "1", "--tensorboard", "off",
           "--summary-every", "off"]
MODELS = {  # layers: of src/model; terms: of the longest sum of a layer; kept: of the running statistics in a step
    "fast94": {"options": ["--image-size", "24x2,28x2,32", "--tail-epochs", "2", "--views", "1"], "sizes": [24, 24, 28, 28] + 4 * [32],
               "layers": 27, "terms": 2304, "kept": 0.5566, "tail": 2},
    "resnet20": {"options": [], "sizes": STEPS * [32], "layers": 71, "terms": 576, "kept": 0.9, "tail": 0},
}


# ---- outside: the program's run


def collect(args, folder):
    """Trains and returns everything that PyTorch needs, as arrays by name."""
    try:
        import h5py
        import numpy as np
    except ImportError as error:
        sys.exit(f"compare_pytorch: {error}; --values needs python3-h5py and python3-numpy")

    def run(command):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"compare_pytorch: '{shlex.join(command)}' failed:\n{done.stdout}{done.stderr}")

    programs = os.path.dirname(args.bench) or "."
    data, runs = os.path.join(folder, "data.h5"), os.path.join(folder, "run")
    if args.data:
        with h5py.File(args.data) as source, h5py.File(data, "w") as file:
            file.attrs.update(source.attrs)
            file["label_names"] = source["label_names"][:]
            for split in "train", "test":
                file[f"{split}/images"], file[f"{split}/labels"] = source[split]["images"][:IMAGES], source[split]["labels"][:IMAGES]
    else:
        run([f"{programs}/cifar_mpi_pack", "--synthetic", str(IMAGES), "--out", data])
    run(shlex.split(args.mpirun) + ["-np", str(args.ranks), f"{programs}/cifar_mpi_train", "--model", args.model, "--data", data,
                                    "--run-dir", runs] + OPTIONS + MODELS[args.model]["options"])
    with h5py.File(data) as file:
        images = file["train/images"][:].astype(np.float64)
        found = {"labels": file["train/labels"][:].astype(np.int64)}
    found["images"] = ((images - images.mean((0, 1, 2))) / images.std((0, 1, 2))).transpose(0, 3, 1, 2)
    for step in range(1, STEPS + 1):
        with h5py.File(f"{runs}/checkpoints/step_{step:09}.h5") as file:
            for group in "model", "ema", "momentum", "running", "running_ema":
                file[group].visititems(lambda name, part, group=group: found.update({f"{step} {group} {name}": part[:]})
                                       if isinstance(part, h5py.Dataset) else None)
    with open(f"{runs}/metrics.jsonl") as lines:
        for line in map(json.loads, lines):
            if line["kind"] == "step":
                found[f"{line['step']} loss"] = np.array([line["cross_entropy"], line["decay_term"]])
    return found


def compare_values(args):
    import numpy as np

    folder = tempfile.mkdtemp()
    try:
        packed = io.BytesIO()
        np.savez(packed, **collect(args, folder))
    finally:
        shutil.rmtree(folder)
    with open(__file__) as source:  # passes the text, because the path may not exist where PyTorch runs
        command = shlex.split(args.python) + ["-c", source.read(), args.model, str(args.ranks)]
    return subprocess.run(command, input=packed.getvalue()).returncode


# ---- inside: PyTorch's step


class Network:
    """The network by the names of its parameters, for the images of one rank. Keeps the statistics of the batch."""

    def __init__(self, torch, weights):
        self.torch, self.F, self.w, self.statistics = torch, torch.nn.functional, weights, {}
        self.undecided = []  # of each pooling and ReLU: its output, and largest and second value of windows where rounding decides

    def conv(self, x, name, stride=1, padding=1):
        w = self.w[name + "/weights"].permute(3, 2, 0, 1)
        return self.F.conv2d(x, w, self.w.get(name + "/biases"), stride, padding)

    def norm(self, x, name, eps):
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
        self.statistics[name + "/mean"], self.statistics[name + "/variance"] = mean.detach(), variance.detach()
        x = (x - mean[:, None, None]) / (variance[:, None, None] + eps).sqrt()
        return x * self.w[name + "/scale"][:, None, None] + self.w[name + "/biases"][:, None, None]

    def largest(self, windows, layers, terms):
        """After so many layers, with sums of at most so many terms, values are off by about their mean size times EPS * sqrt(layers * terms)."""
        off = EPS * math.sqrt(layers * terms) * windows.detach().square().mean().sqrt()
        first, second = windows.topk(2, -1).values.unbind(-1)
        close = first.detach() - second.detach() <= 2 * off
        y = first.clone()
        y.retain_grad()
        self.undecided.append((y, close, first, second))
        return y

    def pool(self, x, layers, terms):
        return self.largest(x.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4), layers, terms)

    def relu(self, x, layers, terms):
        return self.largest(self.torch.stack((x, self.torch.zeros_like(x)), -1), layers, terms)

    def fast94(self, x):
        x = self.F.gelu(self.conv(x, "whitening", padding=0))
        for group in 1, 2, 3:
            for i in 1, 2:
                name = f"group{group}_conv{i}"
                layers, terms = 7 * group - 4, 9 * x.shape[1]
                x = self.conv(x, name)
                x = self.F.silu(self.norm(self.pool(x, layers, terms) if i == 1 else x, name + "_bn", 1e-12))
        return (self.largest(x.flatten(2), 23, 2304) / 256) @ self.w["head/weights"]

    def resnet20(self, x):
        layers, channels = 2, 16
        x = self.relu(self.norm(self.conv(x, "conv1"), "conv1_bn", 1e-5), layers, 27)
        for stage in 1, 2, 3:
            for block in 1, 2, 3:
                name, outputs = f"stage{stage}_block{block}", 16 * 2 ** (stage - 1)
                stride, terms = outputs // channels, 9 * outputs
                y = self.relu(self.norm(self.conv(x, name + "_conv1", stride), name + "_conv1_bn", 1e-5), layers + 3, terms)
                y = self.norm(self.conv(y, name + "_conv2"), name + "_conv2_bn", 1e-5)
                layers, channels, more = layers + 7, outputs, outputs - channels
                x = self.relu(y + self.F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, more)), layers - 1, terms)
        return x.mean((2, 3)) @ self.w["classifier/weights"] + self.w["classifier/biases"]


class Muon:
    """Draws the singular values of a matrix near 1, and bounds what fp32 makes of it."""

    A, B, C, ROUNDS = 3.4445, -4.7750, 2.0315, 3  # Jordan et al. 2024
    # A singular value in [0, 1] stays below 1.21. The polynomial's slope there is the most by which an iteration enlarges a difference.
    SLOPE = max(abs(3.4445 - 3 * 4.7750 * v * v + 5 * 2.0315 * v**4) for v in (i * 1e-4 for i in range(12101)))

    def __init__(self, direction, error):
        x = direction.permute(3, 0, 1, 2).flatten(1)  # [out, height * width * in]
        size = x.norm() + 1e-7
        x, error = x / size, error / float(size)
        out, rest = x.shape
        for _ in range(self.ROUNDS):
            gram = x @ x.T
            # Three products with sums of at most `rest` terms, each off by EPS * sqrt(terms) of its size.
            fresh = EPS * math.sqrt(3 * rest) * (abs(self.A) + abs(self.B) + abs(self.C)) * float(x.norm())
            x, error = self.A * x + (self.B * gram + self.C * gram @ gram) @ x, self.SLOPE * error + fresh
        scale = math.sqrt(max(1.0, out / rest))
        self.error = scale * error
        self.move = scale * x.reshape(out, *direction.shape[:3]).permute(1, 2, 3, 0)


class Step:
    """Step t, counted from 0, from the checkpoint before it; `expected` and `bounds` by name. A bound is of the length of a difference."""

    def __init__(self, torch, given, model, ranks, t):
        self.torch, self.t, self.facts = torch, t, MODELS[model]
        self.old = {tuple(k.split(" ")[1:]): torch.tensor(v, dtype=torch.float64) for k, v in given.items() if k.split(" ")[0] == str(t) and
                    not k.endswith("loss")}
        # A gradient has passed every layer twice; errors of random sign add up as the root of their number, in a sum as in a network.
        self.share = math.sqrt(2 * self.facts["layers"]) * EPS * math.sqrt(self.facts["terms"])
        self.expected, self.bounds = {}, {}
        self.differentiate(model, ranks, torch.tensor(given["images"], dtype=torch.float64), torch.tensor(given["labels"]))
        for name in self.grads:
            self.update(name, model == "fast94")
        for name in [n for g, n in self.old if g == "running"]:
            old, new, keep = self.old["running", name], self.statistics[name], self.facts["kept"]
            of = self.statistics[name.replace("/mean", "/variance")].sqrt() if name.endswith("/mean") else new
            self.expect("running", name, keep * old + (1 - keep) * new, (1 - keep) * self.share * max(float(new.norm()), float(of.norm())))
            self.average("running", "running_ema", name)

    def expect(self, group, name, value, error):
        """`error` is that of the exact function of inexact inputs; two roundings of the result come on top."""
        self.expected[group, name], self.bounds[group, name] = value, error + 2 * EPS * float(value.norm())

    def differentiate(self, model, ranks, images, labels):
        torch, F = self.torch, self.torch.nn.functional
        size, at = self.facts["sizes"][self.t], len(labels) // ranks
        if size < 32:
            images = F.interpolate(images, (size, size), mode="bilinear", antialias=True)
        weights = {n: v.clone().requires_grad_() for (g, n), v in self.old.items() if g == "model"}
        trained = [n for n in weights if n != "whitening/weights"]
        for name in [n for g, n in self.old if g == "running" and n.endswith("/mean")]:
            bias = name.replace("/mean", "/biases")
            weights.setdefault(bias.replace("/biases", "/scale"), torch.ones_like(weights[bias]).requires_grad_())
        loss, parts, undecided = 0.0, [], []
        for rank in range(ranks):
            mine = slice(rank * at, (rank + 1) * at)
            net = Network(torch, weights)
            logits = getattr(net, model)(images[mine])
            loss = loss + F.cross_entropy(logits, labels[mine], label_smoothing=SMOOTHING, reduction="sum") / len(labels)
            parts.append(net.statistics)
            undecided += net.undecided
        loss.backward(retain_graph=bool(undecided))
        # Where the two largest values of a window are as near as rounding, the gradient may as well go to the other. Windows are
        # nearly orthogonal in the gradient, so that the difference of any subset is at most about as long as that of all.
        other = sum((y.grad * (second - first))[close].sum() for y, close, first, second in undecided)
        moved = torch.autograd.grad(other, [weights[n] for n in trained], allow_unused=True) if undecided else []
        self.moved = {n: float(d.norm()) for n, d in zip(trained, moved) if d is not None}
        self.statistics = {n: sum(p[n] for p in parts) / ranks for n in parts[0]}
        self.grads = {n: weights[n].grad for n in trained}
        # Biases sum what weights and scales sum with factors. Where that cancels, rounding of the size of the latter remains.
        self.lengths = {n: max(float(weights[m].grad.norm()) for m in weights if m == n or (m.rsplit("/")[0] == n.rsplit("/")[0] and
                        not n.endswith("/weights"))) for n in trained}
        # muon's decay of hidden matrices is no part of the loss
        decayed = [n for n in trained if n in ("head/weights",) or (model == "resnet20" and n.endswith("/weights"))]
        term = sum(0.5 * DECAY * (self.old["model", n] ** 2).sum() for n in decayed)
        self.expected["loss", "cross-entropy"], self.bounds["loss", "cross-entropy"] = loss.detach()[None], self.share * math.log(10)
        self.expected["loss", "decay"], self.bounds["loss", "decay"] = term[None], 4 * EPS * float(term)

    def update(self, name, muon):
        w, s, g, t = self.old["model", name], self.old["momentum", name], self.grads[name], self.t
        error, decay = self.share * self.lengths[name] + self.moved.get(name, 0.0), DECAY if name.endswith("/weights") else 0.0
        hidden = muon and name.startswith("group") and name.endswith("/weights")
        if muon:
            part = 1 - 0.95 * min(1, t / (STEPS - self.facts["tail"]))
            rate = part * (0.2255 if hidden else 832 if name == "head/weights" else 88)
            keep = 0.655 if hidden else 0.825
        else:
            rate, keep = 0.1 * 0.1 ** ((t >= STEPS // 2) + (t >= STEPS * 3 // 4)), 0.9
        if name == "whitening/biases" and t >= 7:
            rate, g, error = 0.0, g * 0, 2 * EPS * float(s.norm())  # frozen
        if not hidden:
            g = g + decay * w
        gathered = keep * s + g
        self.expect("momentum", name, gathered, error)
        move = g + keep * gathered if muon else gathered
        error *= 1 + keep if muon else 1
        if hidden:
            if t % 4 == 0:
                w = w * (math.sqrt(w.shape[-1]) / w.norm())
            drawn = Muon(move, error)
            move, error = drawn.move + decay * w, drawn.error
        self.expect("hidden" if hidden else "other", name, w - rate * move, rate * error)
        self.average("hidden" if hidden else "other", "ema", name)

    def average(self, of, group, name):
        first = STEPS - self.facts["tail"] if self.facts["tail"] else STEPS
        decay = (self.t - first) / (self.t - first + 1) if self.t >= first else min(EMA, (1 + self.t) / (10 + self.t))
        old, new = self.old[group, name], self.expected[of, name]
        self.expect(group, name, decay * old + (1 - decay) * new, (1 - decay) * self.bounds[of, name])


def main(model, ranks):
    import numpy as np
    import torch

    given = dict(np.load(io.BytesIO(sys.stdin.buffer.read())))
    wrong, table = 0, {}
    for t in COMPARED:
        step = Step(torch, given, model, ranks, t)
        for (group, name), wanted in step.expected.items():
            stored = "model" if group in ("hidden", "other") else group
            place = ["cross-entropy", "decay"].index(name) if group == "loss" else None
            found = given[f"{t + 1} loss"][place : place + 1] if group == "loss" else given[f"{t + 1} {stored} {name}"]
            off, bound = float((torch.tensor(found) - wanted).norm()), step.bounds[group, name]
            rows = table.setdefault(group, [])
            rows.append((off / bound, off / max(float(wanted.norm()), 1e-300), t, name))
            if not off <= bound:
                wrong += 1
                print(f"step {t + 1}, {group} of {name}: off by {off:.3g}, bound {bound:.3g}", flush=True)
    print(f"PyTorch {torch.__version__}, float64; {model}, {ranks} rank(s), steps {', '.join(str(t + 1) for t in COMPARED)}; largest distance of each group:")
    print(f"{'group':<12} {'arrays':>6} {'part of bound':>14} {'of its length':>14}   where")
    for group, rows in table.items():
        worst = max(rows)
        print(f"{group:<12} {len(rows):>6} {worst[0]:>14.3f} {max(r[1] for r in rows):>14.2e}   "
              f"step {worst[2] + 1}, {worst[3]}")
    sys.exit(f"{wrong} arrays differ by more than rounding" if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
