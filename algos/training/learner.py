"""Learner: what turns a batch into a better policy. Everything that has a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from algos import Algorithm, Batch, Loss
from algos.training.collate import cut_by_length
from algos.training.config import TrainerConfig
from algos.training.critic import Critic
from algos.training.distributed import ALONE, Ranks, share, whole
from algos.training.drift import TAU, drift
from algos.training.policy import CausalLMPolicy, Scores

Metrics = dict[str, Any]
Reference = Callable[[Tensor, Tensor, Tensor, float], Scores]
"""(ids, lengths, mask, temperature) -> scores: a frozen `CausalLMPolicy`, or `lora.base_of(policy)`."""


class Diverged(RuntimeError):
    """Too many updates in a row had a loss or a gradient that was not finite."""


@dataclass(frozen=True)
class Pass:
    """What the forward and backward passes of a minibatch found; all of it the same in every process."""

    metrics: dict[str, float]
    """Of the whole minibatch."""
    log_ratio: Tensor
    """[B, T] log(pi / pi_old); anything where mask is False."""
    entropy: Tensor
    """[B, T] in nats; 0 where mask is False."""
    penalised: bool
    """Whether the loss holds a penalty."""


class Learner:
    """Scores batches and updates a policy on them.

    Over several processes all hold the same batch, each runs its share of the micro-batches, and gradients are summed:
    the update is that of one process, to rounding.

    Args:
        policy: is updated in place.
        algorithm: gives advantages and losses.
        config: of the loop.
        seed: of the minibatches.
        reference: gives log-probs that go into the batch, for algorithms with a KL to it.
        critic: is updated in place, for algorithms that need values; a new one unless given.
        ranks: this process among those that train together.
        wreckage: where the batch goes that the run stopped at, should it diverge.
    """

    def __init__(
        self,
        policy: CausalLMPolicy,
        algorithm: Algorithm,
        config: TrainerConfig,
        *,
        seed: int = 0,
        reference: Reference | None = None,
        critic: Critic | None = None,
        ranks: Ranks = ALONE,
        wreckage: Path = Path("diverged.pt"),
    ) -> None:
        if critic is None and "values" in getattr(algorithm, "needs", ()):
            critic = Critic(policy)
        self.policy, self.critic, self.reference = policy, critic, reference
        self.algorithm, self.config, self.ranks, self.wreckage = algorithm, config, ranks, wreckage
        half = config.precision == "bf16"
        if isinstance(reference, nn.Module):
            self.reference = ranks.wrap(reference.requires_grad_(False), half)
        self._policy = ranks.wrap(policy, half)
        self._critic = None if critic is None else ranks.wrap(critic, half)
        self._trained = [self._policy] if self._critic is None else [self._policy, self._critic]
        self._train(False)  # a model may come in either mode
        rates = (config.learning_rate, config.critic_learning_rate)
        learners = [
            {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate, "full": rate}
            for module, rate in zip(self._trained, rates, strict=False)
        ]
        self.optimizer = torch.optim.AdamW(learners, weight_decay=config.weight_decay)
        self.generator = torch.Generator().manual_seed(seed)
        """Of the minibatches."""
        self.skipped_in_a_row = 0
        """Updates without a finite gradient since the last one that had one."""

    @torch.no_grad()
    def score(self, batch: Batch) -> Batch:
        """The batch with what policy, reference and critic say of it before the first update."""
        # A single update takes the log-probs of its own forward pass: see `_backward`.
        if self.config.updates > 1 or self.reference is not None:
            batch = replace(batch, old_logprobs=self._scores(self._policy, batch).logprobs)
        if self.reference is not None:
            batch = replace(batch, ref_logprobs=self._scores(self.reference, batch).logprobs)
        if self._critic is not None:
            values, final = torch.zeros_like(batch.old_logprobs), torch.zeros_like(batch.rewards)
            for part, rows in self._parts(batch):
                with self._precision():
                    found = self._critic(*part.inputs(), part.mask)
                if rows:
                    values[rows], final[rows] = found.values, found.final
            batch = replace(batch, values=self.ranks.total(values), final_values=self.ranks.total(final))
        return batch

    @torch.no_grad()
    def rescore(self, batch: Batch) -> Scores:
        """What the policy, as it is now, says of the tokens of a batch; the same in every process. All call it."""
        return self._scores(self._policy, batch)

    def _scores(self, scorer: Callable[..., Scores], batch: Batch) -> Scores:
        found = batch.old_logprobs.new_zeros(2, *batch.mask.shape)
        for part, rows in self._parts(batch):
            with self._precision():
                scores = scorer(*part.inputs(), part.mask, self.config.temperature)
            if rows:
                found[:, rows] = torch.stack(scores)
        return Scores(*self.ranks.total(found))

    def _parts(self, batch: Batch) -> list[tuple[Batch, list[int]]]:
        """This process's micro-batches and their rows. It has as many as every other: where there is nothing left to do
        it gets any row, for others may wait for it in each pass, and no row numbers."""
        lengths = batch.inputs()[1].tolist()
        parts = share(cut_by_length(lengths, self.config.micro_batch_tokens), self.ranks.rank, self.ranks.count)
        shortest = lengths.index(min(lengths))
        return [(batch.part(rows or [shortest]), rows) for rows in parts]

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.policy.device.type, torch.bfloat16, enabled=self.config.precision == "bf16")

    def update(self, batch: Batch, step: int) -> Metrics:
        """All updates on one rollout batch that has its advantages.

        Args:
            batch: the whole one, the same in every process.
            step: counted from 0, for the schedule.

        Returns:
            Means of the metrics of all updates, and the drift at the last.

        Raises:
            Diverged: if too many updates in a row were skipped.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = group["full"] * self.config.rate(step)
        *earlier, last = self._minibatches(batch)
        rows = [self._update_once(minibatch, first=number == 0)[0] for number, minibatch in enumerate(earlier)]
        metrics, found = self._update_once(last, first=not rows)
        rows.append(metrics)
        names = dict.fromkeys(name for row in rows for name in row)
        means = {name: _finite(sum(row.get(name, 0.0) for row in rows) / len(rows)) for name in names}
        means |= {"updates": len(rows), "learning_rate": self.optimizer.param_groups[0]["lr"]}
        drifted = drift(last, found.log_ratio, found.entropy, getattr(self.algorithm, "tau", TAU))
        if found.penalised and self.config.penalty_every and step % self.config.penalty_every == 0:
            drifted |= self._penalty_norms(last)
        return means | {name: _finite(value) for name, value in drifted.items()}

    def _train(self, on: bool) -> None:
        """Whether what is trained drops out and recomputes activations: in updates only, for all else must repeat."""
        for module in self._trained:
            module.train(on)

    def _minibatches(self, batch: Batch) -> list[Batch]:
        """Those of all passes over a batch of at least one row."""
        orders = [torch.randperm(len(batch), generator=self.generator) for _ in range(self.config.epochs)]
        parts = [rows for order in orders for rows in order.tensor_split(self.config.minibatches)]
        # Dynamic sampling may have found fewer rows than there are minibatches.
        return [batch.select(rows.to(batch.mask.device)) for rows in parts if len(rows)]

    def _update_once(self, minibatch: Batch, first: bool) -> tuple[Metrics, Pass]:
        """One optimiser step on a minibatch; its metrics, and what was seen before the step."""
        found = self._pass(minibatch, lambda out: out.loss, first)
        groups = zip(("grad_norm", "critic_grad_norm"), self.optimizer.param_groups, strict=False)
        norms = {name: self._clip_gradient(group["params"]) for name, group in groups}
        usable = all(map(math.isfinite, (found.metrics["loss"], *norms.values())))
        if usable:  # a step along NaN would lose the policy
            self.optimizer.step()
        self._count_skip(usable, minibatch)
        return found.metrics | norms | {"skipped": float(not usable)}, found

    def _penalty_norms(self, minibatch: Batch) -> Metrics:
        """`penalty_grad_norm` and `objective_grad_norm` of the policy after the updates. Takes the gradients' place."""
        terms = {"penalty": _penalty_of, "objective": lambda out: out.loss - _penalty_of(out)}
        norms: Metrics = {}
        for name, term in terms.items():
            self._pass(minibatch, term)
            norms[f"{name}_grad_norm"] = self._clip_gradient(self.optimizer.param_groups[0]["params"])
        return norms

    def _pass(self, minibatch: Batch, term: Callable[[Loss], Tensor], first: bool = False) -> Pass:
        """Put the gradient of a term of the loss of a minibatch in place, accumulated over micro-batches."""
        self.optimizer.zero_grad()
        shares: dict[str, float] = {}
        seen = minibatch.old_logprobs.new_zeros(2, *minibatch.mask.shape)
        parts, penalised = self._parts(minibatch), False
        self._train(True)
        for number, (part, rows) in enumerate(parts):
            with self.ranks.accumulating(self._trained, last=number == len(parts) - 1):
                out, values = self._backward(part, term, first, idle=not rows)
            penalised = out.penalty is not None
            if rows:
                seen[:, rows] = values
                found = {"loss": out.loss.detach()} | out.metrics
                shares = {name: shares.get(name, 0.0) + value.item() for name, value in found.items()}
        self._train(False)
        totals: dict[str, float] = {}
        for of_rank in self.ranks.gather(shares):
            totals |= {name: totals.get(name, 0.0) + value for name, value in of_rank.items()}
        log_ratio, entropy = self.ranks.total(seen)
        return Pass(totals, log_ratio, entropy, penalised)

    def _backward(self, part: Batch, term: Callable[[Loss], Tensor], first: bool, idle: bool) -> tuple[Loss, Tensor]:
        """Add a micro-batch's share to the gradient; its loss, and its log(pi / pi_old) and entropy, [2, b, T]."""
        with self._precision():
            scores = self._policy(*part.inputs(), part.mask, self.config.temperature)
            critic = {} if self._critic is None else {"values": self._critic(*part.inputs(), part.mask).values}
        if first:
            # The policy is still the one that sampled, so its ratios are 1: exactly, not up to the rounding of
            # two forward passes, which would tell r < 1 from r = 1 at random.
            part = replace(part, old_logprobs=scores.logprobs.detach())
        out = self.algorithm.loss(part, scores.logprobs, scores.entropy, **critic)
        # Gradients are averaged over the processes, and the shares of all are to be summed. Who has nothing to do runs
        # along with a gradient of 0, on a row whose loss is counted elsewhere.
        (term(out) * (0.0 if idle else float(self.ranks.count))).backward()
        return out, torch.stack([scores.logprobs.detach() - part.old_logprobs, scores.entropy])

    def _clip_gradient(self, parameters: list[nn.Parameter]) -> float:
        """The norm of their gradient before it was clipped."""
        norm = nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        return whole(norm).item()

    def _count_skip(self, usable: bool, minibatch: Batch) -> None:
        self.skipped_in_a_row = 0 if usable else self.skipped_in_a_row + 1
        if self.skipped_in_a_row <= self.config.max_skips:
            return
        if self.ranks.leads:
            self.wreckage.parent.mkdir(parents=True, exist_ok=True)
            torch.save(dict(minibatch.tensors()), self.wreckage)
        raise Diverged(
            f"{self.skipped_in_a_row} updates in a row had a loss or gradient that is not finite. The minibatch of the "
            f"last one is in {self.wreckage} (torch.load gives its tensors by name). A lower learning rate or "
            "max_grad_norm often helps; precision = fp32 tells whether rounding is the cause"
        )


def _penalty_of(out: Loss) -> Tensor:
    assert out.penalty is not None
    return out.penalty


def _finite(value: float) -> float | None:
    """The value, or None (JSON's null) where JSON has no word for it."""
    return value if math.isfinite(value) else None
