"""What one process of the test of several ranks does: `python vllm_ranks_worker.py RANK COUNT MEETING_FILE URL`.

All hold the same policy, train it, and sync a server that they share. Prints how far this process's log-probs are from
its policy, before and after.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from vllm_models import EMBEDDED, QUESTION, TOKENIZER, everything, furthest, trained

from algos.training.engines import Request
from algos.training.engines.vllm_server import VLLMServerEngine
from algos.training.loading import load_policy
from algos.training.lora import weights


def main(rank: int, count: int, meeting: str, url: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=timedelta(seconds=120)
    )
    policy = load_policy(EMBEDDED)
    engine = VLLMServerEngine(url, TOKENIZER, seed=rank, leader=rank == 0)
    asked = [Request(n, QUESTION, 30, 0.0) for n in range(2)]
    trained(policy, everything(engine, asked), QUESTION)
    torch.distributed.barrier()  # nobody samples while the leader syncs: as after the updates of a training step
    before = furthest(policy, everything(engine, asked), QUESTION, 0.0)
    torch.distributed.barrier()
    engine.sync(lambda: weights(policy))
    print(before, furthest(policy, everything(engine, asked), QUESTION, 0.0))
    engine.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
