"""What one process of the test of several ranks does: `python vllm_ranks_worker.py RANK COUNT MEETING_FILE ENGINE`.

All hold the same policy, train it, and sync a server that they share, or, for "vllm", each its own engine. Prints how
far this process's log-probs are from its policy, before and after.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
from vllm_models import EMBEDDED, QUESTION, SMALL_CACHE, TOKENIZER, everything, furthest, trained

from algos.training.engines import Request
from algos.training.engines.opening import EngineConfig, open_engine
from algos.training.loading import load_policy
from algos.training.lora import weights


def main(rank: int, count: int, meeting: str, name: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=count, timeout=timedelta(seconds=120)
    )
    policy = load_policy(EMBEDDED)
    config = EngineConfig(name, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=SMALL_CACHE)
    leader = rank == 0
    engine = open_engine(config, model=str(EMBEDDED), policy=None, tokenizer=TOKENIZER, seed=rank, leader=leader)
    asked = [Request(n, QUESTION, 30, 0.0) for n in range(2)]
    trained(policy, everything(engine, asked), QUESTION)
    torch.distributed.barrier()  # nobody samples while the leader syncs: as after the updates of a training step
    before = furthest(policy, everything(engine, asked), QUESTION, 0.0)
    torch.distributed.barrier()
    engine.sync(lambda: weights(policy))
    print(before, furthest(policy, everything(engine, asked), QUESTION, 0.0))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
