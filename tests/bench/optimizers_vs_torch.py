#!/usr/bin/env python3
"""Compares a step of Syncline's AdamW with torch's in one run, on the same number of parameters.

The contestants of torch are its single-tensor, foreach and fused AdamW; DeepSpeed's is CPUAdam, if it can be imported.
All update one FP32 tensor with the same number of threads. Rounds alternate, so that all see the same load of the
machine. Prints a table, or with --json one object, whose `ratio` says how many times faster Syncline's median step is than
torch's fastest.

    python3 tests/bench/optimizers_vs_torch.py --syncline build/release/syncline --params 64000000 --threads 2
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


def torch_contestants(params):
    """Returns functions that make one step, by name. Each has its own weights and state."""
    import torch

    def contestant(make):
        weights = torch.nn.Parameter(torch.ones(params))
        weights.grad = torch.full((params,), 0.25)
        return weights, make([weights])

    made = {
        "torch single tensor": contestant(lambda p: torch.optim.AdamW(p, foreach=False, **OPTIONS)),
        "torch foreach": contestant(lambda p: torch.optim.AdamW(p, foreach=True, **OPTIONS)),
        "torch fused": contestant(lambda p: torch.optim.AdamW(p, fused=True, **OPTIONS)),
    }
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        made["deepspeed cpu_adam"] = contestant(lambda p: DeepSpeedCPUAdam(p, adamw_mode=True, **OPTIONS))
    except Exception as error:  # the import builds C++, and may fail in many ways
        print(f"without DeepSpeed: {type(error).__name__}: {error}".split("\n")[0], file=sys.stderr)
    return made


def expected_weight(steps):
    """Returns the weight after these steps: with equal gradients, AdamW moves by lr after its decay."""
    weight = 1.0
    for _ in range(steps):
        weight -= OPTIONS["lr"] * (OPTIONS["weight_decay"] * weight + 0.25 / (0.25 + OPTIONS["eps"]))
    return weight


def run_syncline(args):
    command = [args.syncline, "bench", "optimizer", "--name", "adamw", "--json", "--params", str(args.params),
               "--threads", str(args.threads), "--warmup", "1", "--rounds", str(args.steps)]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    return json.loads(done.stdout)


def measure(args):
    import torch

    torch.set_num_threads(args.threads)
    contestants = torch_contestants(args.params)
    seconds = {name: [] for name in ["syncline", *contestants]}
    of_copy = []
    for _ in range(args.rounds):
        report = run_syncline(args)
        seconds["syncline"].append(report["seconds"]["median"])
        of_copy.append(report["of_copy"])
        for name, (_, optimizer) in contestants.items():
            optimizer.step()  # the other side also has a round that is not timed
            steps = []
            for _ in range(args.steps):
                begin = time.perf_counter()
                optimizer.step()
                steps.append(time.perf_counter() - begin)
            seconds[name].append(statistics.median(steps))
    for name, (weights, _) in contestants.items():
        got, expected = weights[-1].item(), expected_weight(args.rounds * (1 + args.steps))
        assert abs(got - expected) < 1e-4, f"{name}: {got}, expected {expected}"
    return {"torch": torch.__version__, "seconds": seconds, "of_copy": statistics.median(of_copy), "machine": report["machine"]}


def summary(args, measured):
    medians = {name: statistics.median(rounds) for name, rounds in measured["seconds"].items()}
    rows = {
        name: {
            "seconds": {"median": median, "min": min(measured["seconds"][name]), "max": max(measured["seconds"][name])},
            "ns_per_param": median / args.params * 1e9,
            "over_syncline": median / medians["syncline"],
        }
        for name, median in medians.items()
    }
    fastest = min((name for name in medians if name.startswith("torch")), key=medians.get)
    return {
        "bench": "optimizers_vs_torch",
        "machine": measured["machine"],
        "settings": {"params": args.params, "threads": args.threads, "rounds": args.rounds, "steps": args.steps,
                     "torch": measured["torch"]},  # fmt: skip
        "of_copy": measured["of_copy"],
        "contestants": rows,
        "fastest_of_torch": fastest,
        "ratio": rows[fastest]["over_syncline"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--syncline", default="build/release/syncline")
    parser.add_argument("--params", type=int, default=64_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all contestants in turn")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each in a round")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.params -= args.params % (1024 * args.threads)  # syncline needs whole rows
    report = summary(args, measure(args))
    if args.json:
        print(json.dumps(report, indent=2))
        return
    print(f"AdamW of {args.params / 1e6:.4g} million parameters, {args.threads} threads, torch {report['settings']['torch']}")
    for name, row in report["contestants"].items():
        print(f"  {name:<20}{row['seconds']['median'] * 1e3:10.1f} ms{row['ns_per_param']:8.2f} ns/param"
              f"{row['over_syncline']:8.2f} x")  # fmt: skip
    print(f"  syncline moves {report['of_copy'] * 100:.0f} % of the bytes of a copy of memory in the same time")


if __name__ == "__main__":
    main()
