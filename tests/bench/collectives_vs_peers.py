#!/usr/bin/env python3
"""Compares collectives of Syncline, gloo (torch) and Open MPI in one run, between processes of this host.

Each operation runs in a loop on FP32 vectors. The median of seven rounds counts, and every contestant checks its results.
Prints one JSON object, whose `ratio` says how many times faster Syncline is. Skips contestants that are not installed.

    python3 tests/bench/collectives_vs_peers.py --syncline build/release/syncline --ranks 2 --bytes 8..67108864
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 7
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]

# One rank of Open MPI, built with mpicc.
MPI_SOURCE = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int compare(const void* a, const void* b) { double d = *(double*)a - *(double*)b; return d < 0 ? -1 : d > 0; }
int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int a = 2; a < argc; ++a) {
    size_t bytes = strtoull(argv[a], 0, 10);
    int cut = strcmp(argv[1], "all_reduce") && strcmp(argv[1], "broadcast");
    size_t n = bytes / 4 / (cut ? ranks : 1);
    if (n == 0) n = 1;
    size_t all = n * ranks;
    float* in = malloc(all * 4); float* out = malloc(all * 4);
    for (size_t i = 0; i < all; ++i) in[i] = rank + 1, out[i] = rank + 1;
    long repetitions = (16 << 20) / (long)bytes;
    if (repetitions < 1) repetitions = 1;
    if (repetitions > 5000) repetitions = 5000;
    double times[7];
    for (int round = -1; round < 7; ++round) {
      for (size_t i = 0; i < n; ++i) out[i] = rank + 1;
      MPI_Barrier(MPI_COMM_WORLD);
      double begin = MPI_Wtime();
      long k = round < 0 ? 1 : repetitions;
      for (long j = 0; j < k; ++j) {
        if (!strcmp(argv[1], "all_reduce")) MPI_Allreduce(MPI_IN_PLACE, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else if (!strcmp(argv[1], "all_gather")) MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
        else if (!strcmp(argv[1], "reduce_scatter")) MPI_Reduce_scatter_block(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else if (!strcmp(argv[1], "broadcast")) MPI_Bcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
        else MPI_Alltoall(in, n, MPI_FLOAT, out, n, MPI_FLOAT, MPI_COMM_WORLD);
      }
      if (round >= 0) times[round] = (MPI_Wtime() - begin) / k;
      else {
        float sum = ranks * (ranks + 1) / 2.0f;
        float expected = !strcmp(argv[1], "all_reduce") || !strcmp(argv[1], "reduce_scatter") ? sum : 1;
        if (out[n - 1] != expected) { fprintf(stderr, "wrong: %f\n", out[n - 1]); MPI_Abort(MPI_COMM_WORLD, 1); }
      }
    }
    qsort(times, 7, sizeof(double), compare);
    if (rank == 0) printf("%zu %.9f\n", bytes, times[3]);
    free(in); free(out);
  }
  MPI_Finalize();
}
"""


def sizes_of(text):
    first, _, last = text.partition("..")
    first, last = int(first), int(last or first)
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 4
    return sizes + [last]


def repetitions_of(size):
    return max(1, min(5000, (16 << 20) // size))


def gloo_worker(rank, args, port, results):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // args.ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    measured = {}
    total = args.ranks * (args.ranks + 1) / 2
    for size in sizes_of(args.bytes):
        whole = args.op in ("all_reduce", "broadcast")
        n = max(1, size // 4 // (1 if whole else args.ranks))
        part = torch.full((n,), float(rank + 1))
        parts = [torch.zeros(n) for _ in range(args.ranks)]
        mine = [torch.full((n,), float(rank + 1)) for _ in range(args.ranks)]
        run, check = {
            "all_reduce": (lambda: dist.all_reduce(part), lambda: part[-1] == total),
            "broadcast": (lambda: dist.broadcast(part, 0), lambda: part[-1] == 1),
            "all_gather": (lambda: dist.all_gather(parts, part), lambda: parts[-1][-1] == args.ranks),
            "reduce_scatter": (lambda: dist.reduce_scatter(part, mine), lambda: part[-1] == total),
            "all_to_all": (
                lambda: dist.all_to_all_single(torch.cat(parts), torch.cat(mine)),
                lambda: True,
            ),
        }[args.op]
        try:
            run()
        except RuntimeError:
            break  # gloo does not have it in this version of torch
        assert check(), (args.op, size)
        seconds = []
        for _ in range(ROUNDS):
            part.fill_(1.0)
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(repetitions_of(size)):
                run()
            seconds.append((time.perf_counter() - begin) / repetitions_of(size))
        measured[size] = statistics.median(seconds)
    if rank == 0:
        results.put((torch.__version__, measured))
    dist.destroy_process_group()


def run_gloo(args):
    try:
        import torch.multiprocessing as multiprocessing
    except ImportError:
        return None
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    results = multiprocessing.get_context("spawn").SimpleQueue()
    processes = multiprocessing.spawn(gloo_worker, (args, port, results), nprocs=args.ranks, join=False)
    version, measured = results.get()
    processes.join()
    return {"torch": version, "seconds": measured}


def run_mpi(args):
    if not (shutil.which("mpicc") and shutil.which("mpirun")):
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, program = f"{folder}/bench.c", f"{folder}/bench"
        with open(source, "w") as file:
            file.write(MPI_SOURCE)
        subprocess.run(["mpicc", "-O3", "-o", program, source], check=True)
        medium = [] if args.wire == "shared" else ["--mca", "btl", "tcp,self", "--mca", "pml", "ob1"]
        command = ["mpirun", "-n", str(args.ranks), "--oversubscribe", "--allow-run-as-root", *medium, program, args.op]
        done = subprocess.run(
            command + [str(size) for size in sizes_of(args.bytes)], stdout=subprocess.PIPE, check=True, text=True,
            timeout=900,
        )  # fmt: skip
        version = subprocess.run(["mpirun", "--version"], stdout=subprocess.PIPE, text=True).stdout.split("\n")[0]
    rows = [line.split() for line in done.stdout.splitlines()]
    return {"version": version, "seconds": {int(size): float(seconds) for size, seconds in rows}}


def run_syncline(args):
    command = [args.syncline, "bench", "collective", "--json", "--op", args.op, "--ranks", str(args.ranks),
               "--bytes", args.bytes, "--wire", args.wire]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=900)
    return json.loads(done.stdout)


def compare(args):
    ours = run_syncline(args)
    peers = {"gloo": run_gloo(args), "open_mpi": run_mpi(args)}
    rows = []
    for asked, row in zip(sizes_of(args.bytes), ours["rows"]):
        line = {"size": row["size"], "syncline": row["seconds"]["median"], "busbw_gbs": row["busbw_gbs"], "ratio": {}}
        for name, peer in peers.items():
            if peer and asked in peer["seconds"]:
                line[name] = peer["seconds"][asked]
                line["ratio"][name] = peer["seconds"][asked] / row["seconds"]["median"]
        rows.append(line)
    versions = {name: peer.get("torch") or peer.get("version") for name, peer in peers.items() if peer}
    return {"op": args.op, "ranks": args.ranks, "wire": args.wire, "machine": ours["machine"], "peers": versions, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--syncline", default="build/release/syncline")
    parser.add_argument("--op", default="all_reduce", choices=OPS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--wire", default="shared", choices=["shared", "tcp", "tcp-plain"],
                        help="tcp: as between hosts, over loopback; gloo always goes this way, without TLS")  # fmt: skip
    parser.add_argument("--bytes", default="8..67108864", help="a size, or FIRST..LAST in steps of 4x")
    args = parser.parse_args()
    report = compare(args)
    for name in ("gloo", "open_mpi"):
        if name not in report["peers"]:
            print(f"{name} is not installed: not measured", file=sys.stderr)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
