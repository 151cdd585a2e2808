"""Policy-optimisation algorithms, one short file each. They need torch and nothing else.

For each batch of rollouts, and then for each minibatch of it, or each part of one:

    algo = algos.make("sapo", gamma=0.1)
    batch = algo.advantages(batch)
    out = algo.loss(batch.part(rows), logprobs)
"""

from __future__ import annotations

from algos.batch import Batch, Loss
from algos.cispo import CISPO
from algos.dapo import DAPO
from algos.dr_grpo import DrGRPO
from algos.grpo import GRPO
from algos.grpo_kl import GRPOKL, GRPOKLR
from algos.gspo import GSPO
from algos.lld import LLD
from algos.ppo import PPO
from algos.registry import Algorithm, available, make, register
from algos.reinforce_pp import ReinforcePP
from algos.rloo import RLOO
from algos.sapo import SAPO
from algos.soft_sapo import SoftSAPO

__all__ = [
    "CISPO", "DAPO", "GRPO", "GRPOKL", "GRPOKLR", "GSPO", "LLD", "PPO", "RLOO", "SAPO", "Algorithm", "Batch", "DrGRPO",
    "Loss", "ReinforcePP", "SoftSAPO", "available", "make", "register",
]  # fmt: skip
