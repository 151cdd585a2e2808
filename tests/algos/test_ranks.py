"""Data parallelism: ranks that each hold some rows of a minibatch sum to its loss and gradient, over a real backend."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import algos
from algos.batch import Batch

SHAPE = (5, 7)
CASES = [
    ("grpo", {"aggregation": aggregation})
    for aggregation in ("seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm")
] + [("sapo", {"variant": "released", "tau": 1.2}), ("ppo", {}), ("gspo", {}), ("lld", {})]
ROWS = [[0], [1, 2, 3, 4]]  # uneven, and the first rank's only row is short


def minibatch() -> tuple[Batch, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(SHAPE, generator=generator, dtype=torch.float64)
    mask = torch.rand(SHAPE, generator=generator) < 0.6
    mask[0, 2:] = False
    batch = Batch(
        mask=mask,
        old_logprobs=old,
        rewards=torch.tensor([1.0, 0, 0, 1, 0], dtype=torch.float64),
        groups=torch.zeros(5, dtype=torch.int64),
        values=torch.rand(SHAPE, generator=generator, dtype=torch.float64),
    )
    return batch, old + 0.3 * torch.randn(SHAPE, generator=generator, dtype=torch.float64)


def gradient(name: str, options: dict, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of one weight that all log-probs share, from these rows of the minibatch."""
    batch, logprobs = minibatch()
    algorithm = algos.make(name, **options)
    part = algorithm.advantages(batch).part(rows)
    weight = torch.ones(SHAPE[1], dtype=torch.float64, requires_grad=True)
    critic = {"values": 0.5 * weight * part.require("values", "it has them")} if name == "ppo" else {}
    loss = algorithm.loss(part, logprobs[rows] * weight, **critic).loss
    return loss.detach(), torch.autograd.grad(loss, weight)[0]


def run_rank(rank: int, port: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    sums = []
    for name, options in CASES:
        found = gradient(name, options, ROWS[rank])
        for tensor in found:
            dist.all_reduce(tensor, dist.ReduceOp.SUM)
        sums.append(found)
    torch.save(sums, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run_rank, (port, str(folder)), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: f"{CASES[case][0]}-{case}")
def test_two_ranks_sum_to_the_minibatch(case: int, sums: list[list[tuple[torch.Tensor, torch.Tensor]]]) -> None:
    name, options = CASES[case]
    loss, expected = gradient(name, options, list(range(SHAPE[0])))
    for rank in range(2):
        torch.testing.assert_close(sums[rank][case], (loss, expected), rtol=1e-12, atol=1e-15)
