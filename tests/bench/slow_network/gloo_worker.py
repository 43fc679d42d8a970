"""One worker of the comparison: torch's DistributedDataParallel over gloo, with the model, samples and steps of the demo.

../slow_network.py starts it with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. It writes the part of fashion_mnist's
report that slow_network.py reads. As in fashion_mnist, the clock stops while rank 0 tests.
"""

import argparse
import contextlib
import json
import pathlib
import sys
import time

import torch
from torch import distributed, nn
from torch.nn import functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import convergence  # noqa: E402


class Model(nn.Module):
    def __init__(self, seed, hidden):
        super().__init__()
        self.network = convergence.Network(seed, hidden)
        self.weights = nn.ParameterList(self.network.parameters)
        self.network.parameters = list(self.weights)

    def forward(self, images):
        return self.network.forward(images)


def autocast(options):
    return torch.autocast("cpu", torch.bfloat16) if options.precision == "bf16" else contextlib.nullcontext()


def accuracy(options, model, test):
    images, labels = test
    with torch.no_grad(), autocast(options):
        hits = sum(
            (model(images[i : i + 500]).argmax(1) == labels[i : i + 500]).sum().item() for i in range(0, len(labels), 500)
        )
    return hits / len(labels)


def register(parallel, hook):
    if hook == "fp16":  # torch's hook for BF16 needs NCCL
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def train(options, model, data):
    """Trains, and returns the report."""
    (images, labels), test = data
    rank, world = distributed.get_rank(), distributed.get_world_size()
    # gloo's operations have no names. PowerSGD's operations of two buckets come in a different order on each rank, and
    # abort, so there is only one bucket.
    buckets = {"bucket_cap_mb": 1000} if options.hook == "powersgd" else {}
    parallel = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, **buckets)
    register(parallel, options.hook)
    settings = dict(option.split("=") for option in options.option)
    optimizer = convergence.TORCH_OPTIMIZERS[options.optimizer](
        model.parameters(), **{name: float(value) for name, value in settings.items()}
    )
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 - update / options.schedule_option)
    evaluations, tested = [], 0.0
    distributed.barrier()
    begin = time.monotonic()
    for step, whole in enumerate(convergence.batches(options, len(labels), options.seed), 1):
        batch = whole.tensor_split(world)[rank]
        optimizer.zero_grad(set_to_none=False)
        with autocast(options):
            loss = functional.cross_entropy(parallel(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
        decay.step()
        if rank == 0 and options.eval_steps > 0 and step % options.eval_steps == 0:
            now = time.monotonic()
            evaluations.append({"step": step, "seconds": now - begin - tested, "accuracy": accuracy(options, model, test)})
            print(evaluations[-1], flush=True)
            tested += time.monotonic() - now
        if step == options.steps:
            break
    seconds = time.monotonic() - begin - tested
    final = accuracy(options, model, test) if rank == 0 else 0
    return {"rank": rank, "steps": step, "seconds": seconds, "accuracy": final, "evaluations": evaluations}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--schedule", choices=("linear",))
    parser.add_argument("--schedule-option", type=lambda text: int(text.removeprefix("total_steps=")))
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--eval-steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--hook", choices=("fp16", "powersgd"))
    parser.add_argument("--data-dir", type=pathlib.Path, required=True)
    parser.add_argument("--report", type=pathlib.Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    data = [convergence.read_samples(options.data_dir, prefix) for prefix in ("train", "t10k")]
    report = train(options, Model(options.seed, options.hidden), data)
    distributed.destroy_process_group()
    if report["rank"] == 0:
        options.report.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
