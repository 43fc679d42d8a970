"""Shows the results of slow_network.py as lines, tables, a plot and a page."""

import pathlib
import statistics

MIB = 1 << 20
SMALL = 256  # hidden units of the small model
GOAL = 10  # times faster than DDP at 100 Mbit/s
ALLOWED = 0.5  # points of accuracy


def reached(run, target):
    """Returns the first evaluation at or above the target, in percent, or None."""
    return next((one for one in run["evaluations"] if 100 * one["accuracy"] >= target), None)


def bytes_per_step(run):
    return sum(run["sent"].values()) / run["steps"]


def line(run, target):
    first = reached(run, target)
    when = f"{target:g} % at step {first['step']} after {first['seconds']:.1f} s" if first else f"never {target:g} %"
    return (
        f"seed {run['seed']} {run['rate']:8} {run['contender']:7} {1000 * run['seconds'] / run['steps']:7.1f} ms/step "
        f"{bytes_per_step(run) / MIB:7.3f} MiB/step, {when}, {100 * run['accuracy']:.2f} % at the end"
    )


def rate_name(rate):
    return {"none": "no limit"}.get(rate, rate.replace("gbit", " Gbit/s").replace("mbit", " Mbit/s"))


def middle(values):
    """Returns the median, or None if one of the values is None."""
    values = list(values)
    return None if None in values else statistics.median(values)


def whole(runs, results):
    """Returns the runs that ended: these, or for probes those without a limit, which take the same steps, of all seeds."""
    if not any(run.get("is_probe") for run in runs):
        return runs
    return [one for one in results if one["rate"] == "none" and one["contender"] == runs[0]["contender"]]


def first_at(run, step_seconds, target):
    """Returns when the run reached the target: (step, seconds), or None. Seconds are those of the steps, or what the run measured."""
    first = reached(run, target)
    return first and (first["step"], first["seconds"] if step_seconds is None else first["step"] * step_seconds)


def summary(runs, results, target):
    """Returns medians over the seeds of one contender at one rate."""
    ended = whole(runs, results)
    step_seconds = middle(run["seconds"] / run["steps"] for run in runs)
    firsts = [first_at(run, None if ended is runs else step_seconds, target) for run in ended]
    return {
        "seeds": len(ended),
        "steps": middle(first and first[0] for first in firsts),
        "seconds": middle(first and first[1] for first in firsts),
        "mib": middle(first and first[0] * bytes_per_step(run) / MIB for first, run in zip(firsts, ended)),
        "step_ms": 1000 * step_seconds,
        "step_mib": middle(bytes_per_step(run) / MIB for run in ended),
        "accuracy": statistics.mean(100 * run["accuracy"] for run in ended),
    }


def tuning(results, names, target):
    """Returns the steps to the target and the final accuracy of each contender and learning rate."""
    rates = sorted({run["lr"] for run in results})
    lines = ["| steps to " + f"{target:g} %, accuracy at the end | " + " | ".join(f"{rate:g}" for rate in rates) + " |", "|---" * (len(rates) + 1) + "|"]
    for key, runs in by_contender(results, "none", names).items():
        cells = []
        for rate in rates:
            at = [run for run in runs if run["lr"] == rate]
            row = summary(at, results, target) if at else None
            cells.append(f"{figure(row['steps'], '{:.0f}')}, {row['accuracy']:.2f}" if row else "-")
        lines.append(f"| {names[key]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def by_contender(results, rate, names):
    """Returns the runs of each contender at one rate, except probes without the run that they need."""
    found = {key: [run for run in results if run["rate"] == rate and run["contender"] == key] for key in names}
    return {key: runs for key, runs in found.items() if runs and whole(runs, results)}


def rates_of(results):
    return list(dict.fromkeys(run["rate"] for run in results))


def figure(value, text):
    return "never" if value is None else text.format(value)


def table(results, rate, names, target):
    lines = [
        f"| {rate_name(rate)} | s to {target:g} % | beside DDP | steps to {target:g} % | MiB on the wires to {target:g} % "
        "| ms a step | MiB a step | accuracy at the end, % | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    sums = {key: summary(runs, results, target) for key, runs in by_contender(results, rate, names).items()}
    rival = sums.get("ddp", {}).get("seconds")
    for key, row in sums.items():
        speedup = rival / row["seconds"] if rival and row["seconds"] else None
        lines.append(
            f"| {names[key]} | {figure(row['seconds'], '{:.1f}')} | {'-' if speedup is None else f'{speedup:.1f}x'} "
            f"| {figure(row['steps'], '{:.0f}')} | {figure(row['mib'], '{:.1f}')} | {row['step_ms']:.1f} "
            f"| {row['step_mib']:.3f} | {row['accuracy']:.2f} | {row['seeds']} |"
        )
    return "\n".join(lines)


def shown_rates(results):
    """Returns the rates to show: not "none" if it was run only for the probes of the others."""
    is_probed = any(run.get("is_probe") for run in results)
    return [rate for rate in rates_of(results) if not (is_probed and rate == "none")]


def tables(results, names, target):
    return "\n\n".join(table(results, rate, names, target) for rate in shown_rates(results))


def plot(results, names, options):
    """Draws the plot. Returns its file, or None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "slow_network"
    from matplotlib import pyplot

    rates = shown_rates(results)
    _, axes = pyplot.subplots(1, len(rates), figsize=(5 * len(rates), 4), sharey=True, squeeze=False)
    for axis, rate in zip(axes[0], rates):
        for key, runs in by_contender(results, rate, names).items():
            run, points = runs[0], whole(runs, results)[0]["evaluations"]
            seconds = [p["step"] * run["seconds"] / run["steps"] if run.get("is_probe") else p["seconds"] for p in points]
            axis.plot(seconds, [100 * p["accuracy"] for p in points], label=names[key])
        axis.axhline(options.target, color="grey", linewidth=0.8, linestyle="--")
        axis.set(title=rate_name(rate), xscale="log", xlabel="seconds of training", ylim=(70, 92))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("test accuracy, %")
    axes[0][0].legend(fontsize="small", loc="lower right")
    path = options.write.with_name(f"{options.write.stem}{'' if options.hidden == SMALL else f'_{options.hidden}'}.svg")
    pyplot.tight_layout()
    pyplot.savefig(path, metadata={"Date": None})
    return path


def rates_used(results, names):
    found = {run["contender"]: run["lr"] for run in results}
    return ", ".join(f"{names[key]} {rate:g}" for key, rate in found.items())


def verdict(results, names, target):
    """Returns the verdict on both goals: time to the target, and accuracy after the same steps."""
    sums = {key: summary(runs, results, target) for key, runs in by_contender(results, "100mbit", names).items()}
    rival = sums.pop("ddp", None)
    for key in ("bf16", "ddp-fp16", "ddp-powersgd"):
        sums.pop(key, None)
    lines = []
    for key, row in sums.items():
        if rival is None or rival["seconds"] is None or row["seconds"] is None:
            continue
        speedup, loss = rival["seconds"] / row["seconds"], rival["accuracy"] - row["accuracy"]
        lines.append(
            f"- {names[key]}: {speedup:.1f} times as fast to {target:g} % ({'met' if speedup >= GOAL else '**missed**'}); "
            f"after the same steps {loss:.2f} points behind DDP ({'met' if loss <= ALLOWED else '**missed**'})"
        )
    goal = f"Goal at 100 Mbit/s: compressed training {GOAL} times as fast as DDP to the same accuracy, within {ALLOWED} points."
    return "\n".join([goal, "", *lines])


def parameters(options):
    """Returns the number of parameters in millions (worker/examples/fashion_mnist/model.h)."""
    return (32 * 25 + 32 + 64 * 288 + 64 + options.hidden * 3137 + 10 * options.hidden + 10) / 1e6


def section(results, names, options, version, image):
    """Returns the text that --write puts between the page's two comments for this model's size."""
    import convergence

    seeds = len({run["seed"] for run in results})
    picture = f"\n![Test accuracy over seconds of training, by contender and link]({image.name})\n" if image else ""
    steps = max(run["steps"] for run in results)
    flags = [f"--seeds {seeds}", f"--rates {' '.join(rates_of(results))}"]
    flags += [f"--hidden {options.hidden}"] if options.hidden != SMALL else []
    flags += [f"--epochs {options.epochs}"] if options.epochs != 2 else []
    probes = ""
    if options.probe_steps:
        flags.append(f"--probe-steps {options.probe_steps}")
        probes = (f" Steps, bytes and accuracies are those of runs without a limit, which take the same steps; milliseconds of a step are"
                  f" those of its first {options.probe_steps} steps at the rate.")
    return f"""{verdict(results, names, options.target)}

{tables(results, names, options.target)}
{picture}
{steps} steps.{probes} Learning rates: {rates_used(results, names)}. Made by

    sudo python3 tests/bench/slow_network.py {" ".join(flags)} --write docs/slow_network.md

with {version}, torch {convergence.torch.__version__}, {convergence.processor()}.
"""


def marks(options):
    size = f"{parameters(options):.2f} million parameters"
    return f"<!-- begin: {size} -->\n", f"<!-- end: {size} -->\n"


def replaced(page, options, text):
    """Returns the page with this text as the model's section."""
    begin, end = marks(options)
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"{options.write} has no section of this model: write {begin.strip()} and {end.strip()} where it shall be")
    return page[:page.index(begin) + len(begin)] + text + page[page.index(end):]
