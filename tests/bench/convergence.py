#!/usr/bin/env python3
"""Does the Fashion-MNIST demo learn as well with Syncline's optimizers as the same model in plain torch?

For each optimizer and seed it runs `fashion_mnist` as a job of 2 workers and 2 servers. In this process it trains the same
network on the whole batches of that job, with torch's optimizer, or by the paper's formula if torch has none. Both begin
with the same weights and see the same samples in the same order. The losses of the first step prove that before anything
else runs. The verdict compares means over the seeds: rounding changes a single run's accuracy by about 0.2 points.

    python3 tests/bench/convergence.py --bin build/release --write docs/convergence.md --json build/convergence.json

Needs torch. The exit code is 1 if an optimizer differs by more than 0.3 points.
"""

import argparse
import gzip
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    from torch.nn import functional
except ImportError:
    sys.exit("convergence: this python has no torch; python3 -m venv build/venv && build/venv/bin/pip install torch numpy")

WORKERS = 2
SERVERS = 2
GROWTH = 4  # factor of the batch size in the last two of five epochs (batch_plan.h)
ALLOWED = 0.3  # allowed difference in points of accuracy
SAME_LOSS = 1e-4  # relative; two builds of the same sums differ by about 1e-6
MASK = (1 << 64) - 1

OPTIMIZERS = {
    "adamw": {"lr": 1.5e-3, "weight_decay": 0.01},
    "lamb": {"lr": 5e-3, "weight_decay": 0.01},
    "adafactor": {"lr": 1},
    "lion": {"lr": 2e-4, "weight_decay": 0.05},
    "sgd": {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4},
}


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, arXiv 2302.06675, algorithm 2."""

    def __init__(self, parameters, lr, weight_decay, beta1=0.9, beta2=0.99):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "betas": (beta1, beta2)})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                direction = (beta1 * mean + (1 - beta1) * p.grad).sign()
                mean.mul_(beta2).add_(p.grad, alpha=1 - beta2)
                p.sub_(group["lr"] * (direction + group["weight_decay"] * p))


class Lamb(torch.optim.Optimizer):
    """You et al. 2020, arXiv 1904.00962, algorithm 2, with phi as the identity; an undefined ratio is 1."""

    def __init__(self, parameters, lr, weight_decay, beta1=0.9, beta2=0.999):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "betas": (beta1, beta2), "eps": 1e-6})
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                square = self.state[p].setdefault("square", torch.zeros_like(p))
                mean.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                square.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                fair_mean = mean / (1 - beta1**self.steps)
                fair_square = square / (1 - beta2**self.steps)
                direction = fair_mean / (fair_square.sqrt() + group["eps"]) + group["weight_decay"] * p
                weights, length = p.norm().item(), direction.norm().item()
                ratio = weights / length if weights > 0 and length > 0 else 1
                p.sub_(group["lr"] * ratio * direction)


class Adafactor(torch.optim.Optimizer):
    """Shazeer, Stern 2018, arXiv 1804.04235, algorithms 4 and 5: relative steps that follow the scale of the weights.

    The last two dimensions are the matrix, as in the paper's own code. torch.optim.Adafactor is another variant.
    """

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        memory = 1 - self.steps**-0.8
        for group in self.param_groups:
            relative = group["lr"] * min(1e-2, self.steps**-0.5)
            for p in group["params"]:
                direction = self._direction(p, memory)
                direction /= max(1.0, direction.square().mean().sqrt().item())
                p.sub_(relative * max(1e-3, p.square().mean().sqrt().item()) * direction)

    def _direction(self, p, memory):
        square = p.grad.square() + 1e-30
        if p.dim() == 1:
            return p.grad / self._mean(p, "square", square, memory).sqrt()
        rows = self._mean(p, "rows", square.mean(-1, keepdim=True), memory)
        columns = self._mean(p, "columns", square.mean(-2, keepdim=True), memory)
        return p.grad * (rows.mean(-2, keepdim=True) / rows).sqrt() / columns.sqrt()

    def _mean(self, p, name, fresh, memory):
        mean = self.state[p].setdefault(name, torch.zeros_like(fresh))
        return mean.mul_(memory).add_(fresh, alpha=1 - memory)


TORCH_OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "lamb": Lamb,
    "adafactor": Adafactor,
    "lion": Lion,
    "sgd": torch.optim.SGD,
}


class Network:
    """The network of worker/examples/fashion_mnist/model.cc. Weights have its shapes: output, row, column, input."""

    def __init__(self, seed, hidden=256):
        torch.manual_seed(seed)
        self.parameters = []
        for outputs, side, inputs in ((32, 5, 1), (64, 3, 32), (hidden, 7, 64), (10, 1, hidden)):
            bound = (side * side * inputs) ** -0.5
            weights = torch.empty(outputs, side, side, inputs).uniform_(-bound, bound)
            self.parameters += [weights.requires_grad_(), torch.zeros(outputs).requires_grad_()]

    def forward(self, images):
        w1, b1, w2, b2, w3, b3, w4, b4 = self.parameters
        x = functional.conv2d(images, w1.permute(0, 3, 1, 2), b1, stride=2, padding=2).relu()
        x = functional.max_pool2d(functional.conv2d(x, w2.permute(0, 3, 1, 2), b2, padding=1), 2).relu()
        x = functional.linear(x.permute(0, 2, 3, 1).flatten(1), w3.flatten(1), b3).relu()
        return functional.linear(x, w4.flatten(1), b4)


def read_samples(directory, prefix):
    """Returns normalised images and labels."""

    def content(kind, header):
        with gzip.open(directory / f"{prefix}-{kind}-ubyte.gz") as file:
            return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)

    images = content("images-idx3", 16).view(-1, 1, 28, 28).float()
    return images.sub_(255 * 0.2860).div_(255 * 0.3530), content("labels-idx1", 8).long()


def mix(value):
    """SplitMix64, as in batch_plan.cc."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def batches(options, samples, seed):
    """Yields the sample numbers of each step, of all ranks in order, as batch_plan.cc computes them."""
    small_epochs = options.epochs - options.epochs * 2 // 5
    for epoch in range(options.epochs):
        growth = 1 if epoch < small_epochs else GROWTH
        order = list(range(samples))
        stream = mix(seed ^ mix(epoch))
        for i in range(samples - 1, 0, -1):
            other = mix((stream + i) & MASK) % (i + 1)
            order[i], order[other] = order[other], order[i]
        order = torch.tensor(order)
        parts = -(-samples // (growth * options.batch_size * WORKERS))
        for part in range(parts):
            yield order[samples * part // parts : samples * (part + 1) // parts]


def take(steps, most):
    """Yields the first `most` steps, or all of them if it is 0."""
    for number, step in enumerate(steps, 1):
        yield step
        if number == most:
            return


def train_torch(options, data, name, seed):
    """Trains with torch. Returns the test accuracy in percent."""
    (images, labels), (test_images, test_labels) = data
    network = Network(seed)
    optimizer = TORCH_OPTIMIZERS[name](network.parameters, **OPTIMIZERS[name])
    for batch in take(batches(options, len(labels), seed), options.steps):
        optimizer.zero_grad()
        functional.cross_entropy(network.forward(images[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        hits = sum(
            (network.forward(test_images[i : i + 500]).argmax(1) == test_labels[i : i + 500]).sum().item()
            for i in range(0, len(test_labels), 500)
        )
    return 100 * hits / len(test_labels)


def syncline_command(options, name, seed, precision):
    values = [f"--option={key}={value}" for key, value in OPTIMIZERS[name].items()]
    launch = ["run", "--standalone", "--servers", str(SERVERS), "--nproc-per-node", str(WORKERS), "--"]
    train = ["--optimizer", name, *values, "--epochs", str(options.epochs), "--batch-size", str(options.batch_size)]
    rest = ["--seed", str(seed), "--precision", precision, "--data-dir", str(options.data_dir)]
    return [str(options.bin / "syncline"), *launch, str(options.bin / "fashion_mnist"), *train, *rest]


def run_syncline(options, name, seed, precision, steps):
    """Trains with Syncline. Returns the report of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        command = syncline_command(options, name, seed, precision) + ["--report", str(report), "--steps", str(steps)]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
        if run.returncode != 0:
            sys.exit(f"convergence: exit {run.returncode} of {' '.join(command)}\n{run.stdout[-2000:]}")
        return json.loads(report.read_text())


def check_same_start(options, data):
    """Checks that both sides have the same weights, samples and network."""
    (images, labels), _ = data
    whole = next(batches(options, len(labels), 1))
    batch = whole[: len(labels) // (-(-len(labels) // (options.batch_size * WORKERS)) * WORKERS)]  # rank 0's slice
    with torch.no_grad():
        expected = functional.cross_entropy(Network(1).forward(images[batch]), labels[batch]).item()
    found = run_syncline(options, "sgd", 1, "fp32", 1)["loss"]
    if abs(found - expected) > SAME_LOSS * expected:
        sys.exit(f"convergence: the first loss is {found} in fashion_mnist and {expected} here: not the same training")
    print(f"first loss: fashion_mnist {found:.6f}, torch {expected:.6f}", file=sys.stderr)


def run_all(options, data):
    """Returns accuracies by optimizer and contestant. Runs seed by seed, so that all see the same load of the machine."""
    found = {name: {who: [] for who in ("torch", *options.precisions)} for name in options.optimizers}
    for seed in range(1, options.seeds + 1):
        for name in options.optimizers:
            for who in found[name]:
                begin = time.monotonic()
                if who == "torch":
                    accuracy = train_torch(options, data, name, seed)
                else:
                    accuracy = 100 * run_syncline(options, name, seed, who, options.steps)["accuracy"]
                found[name][who].append(round(accuracy, 2))
                seconds = time.monotonic() - begin
                print(f"seed {seed} {name:10} {who:6} {accuracy:6.2f} % {seconds:6.1f} s", file=sys.stderr, flush=True)
    return found


def spread(values):
    return statistics.stdev(values) if len(values) > 1 else 0.0


def compare(found):
    """Returns one row for each optimizer and precision."""
    rows = []
    for name, contestants in found.items():
        for precision, values in contestants.items():
            if precision == "torch":
                continue
            difference = statistics.mean(values) - statistics.mean(contestants["torch"])
            noise = ((spread(values) ** 2 + spread(contestants["torch"]) ** 2) / len(values)) ** 0.5
            rows.append(
                {
                    "optimizer": name,
                    "options": OPTIMIZERS[name],
                    "precision": precision,
                    "syncline": values,
                    "torch": contestants["torch"],
                    "difference": round(difference, 3),
                    "standard_error": round(noise, 3),
                    "within": abs(difference) <= ALLOWED,
                }
            )
    return rows


def table(rows):
    def accuracy(values):
        return f"{statistics.mean(values):.2f} ± {spread(values):.2f}"

    lines = [
        f"| optimizer | options | precision | Syncline, % | torch, % | difference, points | within {ALLOWED} |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        settings = ", ".join(f"{key} {value:g}" for key, value in row["options"].items())
        lines.append(
            f"| `{row['optimizer']}` | {settings} | {row['precision']} | {accuracy(row['syncline'])} "
            f"| {accuracy(row['torch'])} | {row['difference']:+.2f} ± {row['standard_error']:.2f} "
            f"| {'yes' if row['within'] else '**no**'} |"
        )
    return "\n".join(lines)


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def page(options, rows, minutes):
    version = subprocess.run([options.bin / "syncline", "version"], capture_output=True, text=True, check=True)
    command = f"python3 tests/bench/convergence.py --seeds {options.seeds} --epochs {options.epochs}"
    return f"""# Convergence beside plain torch

This page compares the [Fashion-MNIST demo](../worker/examples/fashion_mnist/README.md), as a job of {WORKERS} workers and {SERVERS} servers, with
the same network in one process of plain torch. Both have the same first weights and the same samples in the same order (the
script checks this by the loss of the first step). Batches have {options.batch_size * WORKERS} samples, {GROWTH} times as many in the
last epochs; there are {options.epochs} epochs with a constant learning rate. torch computes in FP32. With `bf16` Syncline's workers compute under autocast
and both directions of the wire carry BF16; weights and optimizer state on the servers are FP32.

{table(rows)}

Test accuracy after the last step, mean ± standard deviation of {options.seeds} seeds; the difference has its standard error.
AdamW and SGD are torch's own; LAMB, Lion and Adafactor (relative steps, as in the paper; torch's is another variant) are
written from their papers in the script. All options that are not named have the same defaults on both sides. The options
are usual values and were not tuned: the table compares implementations, not optimizers.

Made in {minutes:.0f} minutes by

    {command} --precisions {" ".join(options.precisions)} --write docs/convergence.md

with {version.stdout.splitlines()[0]}, torch {torch.__version__}, {torch.get_num_threads()} threads, {processor()}.
"""


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default="build/release", help="where syncline and fashion_mnist are")
    parser.add_argument("--data-dir", type=pathlib.Path, default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    parser.add_argument("--precisions", nargs="+", choices=("bf16", "fp32"), default=["bf16"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of one of the %d workers" % WORKERS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--quick", action="store_true", help="40 steps of one seed: shows that all runs, not how well")
    parser.add_argument("--write", type=pathlib.Path, help="write the table, as a page, to this file")
    parser.add_argument("--json", type=pathlib.Path, help="write all accuracies to this file")
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    options.steps = 40 if options.quick else 0
    if options.quick:
        options.seeds = 1
        if options.write:
            parser.error("--quick measures nothing worth writing down")
    return options


def main():
    options = parse()
    torch.set_num_threads(options.threads)
    data = [read_samples(options.data_dir, prefix) for prefix in ("train", "t10k")]
    check_same_start(options, data)
    begin = time.monotonic()
    rows = compare(run_all(options, data))
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "epochs": options.epochs, "rows": rows}, indent=2))
    if options.write:
        options.write.write_text(page(options, rows, (time.monotonic() - begin) / 60))
    return 0 if options.quick or all(row["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
