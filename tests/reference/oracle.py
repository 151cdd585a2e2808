"""The losses of verl and TRL, computed by verl and TRL: `python oracle.py REQUEST ANSWER`, in what `make peers` made.

Nothing imports this file, for neither package is among ours; test_oracles.py runs it. It computes nothing itself: it
brings tensors into the form in which the peers' own functions want them, and calls these.

REQUEST is a file of torch.save: {"batches": {name: {field: tensor}}, "cases": {name: {"function", "options",
"batches"}}}; the fields are those of `algos.batch.Batch`, and `logprobs` and `new_values`, those of the policy and the
critic as they are now. ANSWER is {case: {batch: {"loss", "gradient", …}}}.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from accelerate import PartialState  # pyright: ignore[reportMissingImports]
from torch import Tensor
from trl import GRPOTrainer, RLOOTrainer  # pyright: ignore[reportMissingImports]
from verl.trainer.config import AlgoConfig  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo import core_algos as verl  # pyright: ignore[reportMissingImports]
from verl.trainer.ppo import rollout_corr_helper as correction  # pyright: ignore[reportMissingImports]
from verl.workers.config import ActorConfig  # pyright: ignore[reportMissingImports]

Fields = SimpleNamespace
Answer = dict[str, Tensor]


def gradients(loss: Tensor, **inputs: Tensor) -> Answer:
    """The loss and its gradients; a peer may ignore an input."""
    found = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True, materialize_grads=True)
    return {"loss": loss.detach(), **dict(zip(inputs, found, strict=True))}


# verl


def token_rewards(batch: Fields, kl_coef: float) -> Tensor:
    """[B, T]: the reward at the last token of the policy, or at the last of all where there is none."""
    last = (batch.mask.cumsum(1) * batch.mask).argmax(1)
    last = torch.where(batch.mask.any(1), last, batch.mask.shape[1] - 1)
    rewards = torch.zeros_like(batch.old_logprobs)
    rewards[torch.arange(len(last)), last] = batch.rewards
    return verl.compute_rewards(rewards, batch.old_logprobs, batch.ref_logprobs, kl_coef) if kl_coef else rewards


def verl_loss(
    batch: Fields,
    *,
    estimator: str,
    policy_loss: str = "vanilla",
    mode: str = "token-mean",
    config: dict[str, Any] | None = None,
    aggregation: dict[str, float] | None = None,
    scale_by_std: bool = True,
    gamma: float = 1.0,
    lam: float = 1.0,
    reward_kl: float = 0.0,
    loss_kl: tuple[str, float] | None = None,
    value_clip: float = 0.5,
    weights: tuple[str, float | str] | None = None,
) -> Answer:
    """What a step of the actor, and of the critic where there is one, minimises."""
    mask = batch.mask.to(batch.old_logprobs.dtype)  # the estimators compute 1 - mask, which a boolean one forbids
    rewards = token_rewards(batch, reward_kl)
    index = batch.groups.numpy()
    returns = None
    if estimator == "gae":
        advantages, returns = verl.compute_gae_advantage_return(rewards, batch.values, mask, gamma, lam)
    elif estimator == "grpo":
        advantages, _ = verl.compute_grpo_outcome_advantage(rewards, mask, index, norm_adv_by_std_in_grpo=scale_by_std)
    else:
        compute = verl.get_adv_estimator_fn(estimator)
        advantages, _ = compute(
            token_level_rewards=rewards, response_mask=mask, index=index, config=AlgoConfig(gamma=gamma)
        )
    given = None
    if weights is not None:
        level, threshold = weights
        log_ratio = batch.old_logprobs - batch.rollout_logprobs
        given, _ = correction.compute_rollout_correction_weights(log_ratio, mask, level, threshold)
    options = ActorConfig(strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1, **(config or {}))
    options.global_batch_info.update(aggregation or {})
    compute_loss = verl.get_policy_loss_fn(policy_loss)
    loss, _ = compute_loss(batch.old_logprobs, batch.logprobs, advantages, mask, mode, options, given)
    if loss_kl is not None:
        penalty, coefficient = loss_kl
        kl = verl.kl_penalty(batch.logprobs, batch.ref_logprobs, penalty)
        loss = loss + coefficient * verl.agg_loss(kl, mask, mode, **(aggregation or {}))
    answer = {"advantages": advantages * mask}
    if returns is None:
        return answer | gradients(loss, gradient=batch.logprobs)
    value_loss, _ = verl.compute_value_loss(batch.new_values, returns, batch.values, mask, value_clip, mode)
    answer |= {"returns": returns * mask}
    return answer | gradients(loss + value_loss, gradient=batch.logprobs, value_gradient=batch.new_values)


def verl_aggregation(batch: Fields, *, mode: str, rows: int | None = None, scale: float | None = None) -> Answer:
    """The average of the log-probs; with `rows`, the first so many as a micro-batch of the whole."""
    mask = batch.mask.to(batch.old_logprobs.dtype)
    whole = {"batch_num_tokens": mask.sum(), "global_batch_size": batch.mask.any(1).sum()} if rows else {}
    given = verl.agg_loss(batch.logprobs[:rows], mask[:rows], mode, loss_scale_factor=scale, **whole)
    return gradients(given, gradient=batch.logprobs)


def verl_kl(batch: Fields, *, penalty: str) -> Answer:
    """The estimate at each token, and the gradient of their sum."""
    mask = batch.mask.to(batch.old_logprobs.dtype)
    kl = verl.kl_penalty(batch.logprobs, batch.ref_logprobs, penalty) * mask
    return {"kl": kl.detach()} | gradients(kl.sum(), gradient=batch.logprobs)


def verl_weights(batch: Fields, *, level: str, threshold: float | str) -> Answer:
    mask = batch.mask.to(batch.old_logprobs.dtype)
    log_ratio = batch.old_logprobs - batch.rollout_logprobs
    weights, _ = correction.compute_rollout_correction_weights(log_ratio, mask, level, threshold)
    return {"weights": weights}


def verl_rejection(batch: Fields, *, criterion: str, threshold: str) -> Answer:
    mask = batch.mask.to(batch.old_logprobs.dtype)
    log_ratio = batch.old_logprobs - batch.rollout_logprobs
    kept, _ = correction.compute_rollout_rejection_mask(log_ratio, mask, criterion, threshold)
    return {"kept": kept}


# TRL


def cut(batch: Fields, name: str) -> Tensor:
    """A field without the columns that are padding in all rows: TRL pads to the longest completion."""
    return getattr(batch, name)[:, : int(batch.lengths.max())]


def packed(batch: Fields, name: str) -> Tensor:
    """A field with the policy's tokens of each row moved to the left, for a trainer that knows no masked spans."""
    order = (~batch.mask).to(torch.int8).argsort(dim=1, stable=True)
    return getattr(batch, name).gather(1, order)[:, : int(batch.mask.sum(1).max())]


def trainer(
    batch: Fields, field: Callable[[Fields, str], Tensor], generated: tuple, group: int, kl_coef: float, **more: Any
) -> Fields:
    """What the methods of a trainer read of `self`. A "model" is the name of the field with its log-probs."""
    model = SimpleNamespace(field="old_logprobs", training=True, is_gradient_checkpointing=False)
    accelerator = SimpleNamespace(
        device=torch.device("cpu"),
        num_processes=1,
        process_index=0,
        sync_gradients=True,
        gather=lambda given: given,
        reduce=lambda given, reduction: given,
    )

    def logprobs(model: Fields, *arguments: object, **options: object) -> tuple[Tensor, Tensor, None]:
        scored = field(batch, model.field)
        return scored, torch.zeros_like(scored), None

    return SimpleNamespace(
        accelerator=accelerator,
        model=model,
        ref_model=SimpleNamespace(field="ref_logprobs"),
        beta=kl_coef,
        num_generations=group,
        reward_weights=torch.ones(1),
        reward_funcs=["reward"],
        reward_func_names=["reward"],
        _calculate_rewards=lambda *arguments: batch.rewards[:, None].clone(),
        _generate=lambda prompts: generated,
        _get_per_token_logps_and_entropies=logprobs,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        aux_loss_enabled=False,
        log_multimodal=False,
        _metrics={"train": defaultdict(list)},
        _logs={
            "prompt": [],
            "completion": [],
            "advantages": [],
            "rewards": defaultdict(list),
            "extra": defaultdict(list),
        },
        _pending_extra_logs={},
        _pending_metrics={},
        **more,
    )


def per_token(advantages: Tensor, batch: Fields) -> Tensor:
    return advantages[:, None] * batch.mask


def trl_grpo_loss(
    batch: Fields,
    *,
    loss_type: str,
    level: str = "token",
    low: float = 0.2,
    high: float = 0.2,
    delta: float | None = None,
    scale_rewards: str = "group",
    max_length: int = 512,
    kl_coef: float = 0.0,
    weigh_kl: bool = True,
    correct: tuple[str, float | None, float | None] | None = None,
    group: int = 4,
) -> Answer:
    """Completions are scored and their loss is taken by `GRPOTrainer`; masked spans are its tool results."""
    lengths = batch.lengths.tolist()
    rows = range(len(lengths))
    generated = (
        [[1]] * len(lengths),
        [[1] * length for length in lengths],
        [batch.mask[row, : lengths[row]].long().tolist() for row in rows],
        ["a completion"] * len(lengths),
        [batch.rollout_logprobs[row, : lengths[row]].tolist() for row in rows] if correct else None,
        {},
        None,
        [None] * len(lengths),
    )
    mode, lowest, highest = correct or (None, None, None)
    self = trainer(
        batch,
        cut,
        generated,
        group,
        kl_coef,
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=low,
        epsilon_high=high,
        scale_rewards=scale_rewards,
        max_completion_length=max_length,
        multi_objective_aggregation="sum_then_normalize",
        use_vllm=correct is not None,
        vllm_importance_sampling_correction=correct is not None,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=lowest,
        vllm_importance_sampling_clip_max=highest,
        args=SimpleNamespace(
            delta=delta,
            use_bias_correction_kl=weigh_kl,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            steps_per_generation=1,
            # Fewer than the generations are used for, so that the old log-probs are computed at all.
            gradient_accumulation_steps=1,
            per_device_train_batch_size=len(lengths),
            gradient_checkpointing_kwargs=None,
        ),
        num_iterations=2,
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        environment_factories=None,
        environments=None,
        tools=None,
        _entropy_bonus_enabled=False,
    )
    inputs = GRPOTrainer._generate_and_score_completions(self, [{"prompt": "a question"}] * len(lengths))
    loss = GRPOTrainer._compute_loss(self, SimpleNamespace(field="logprobs"), inputs)
    return {"advantages": per_token(inputs["advantages"], batch)} | gradients(loss, gradient=batch.logprobs)


def trl_rloo_loss(
    batch: Fields, *, low: float = 0.2, high: float = 0.2, kl_coef: float = 0.05, group: int = 4
) -> Answer:
    """Completions are scored and their loss is taken by `RLOOTrainer`, which is given the policy's tokens alone."""
    counts = batch.mask.sum(1).tolist()
    generated = ([[1]] * len(counts), [[1] * count for count in counts], ["a completion"] * len(counts))
    self = trainer(
        batch,
        packed,
        generated,
        group,
        kl_coef,
        epsilon_low=low,
        epsilon_high=high,
        reward_clip_range=None,
        normalize_advantages=False,
        args=SimpleNamespace(per_device_train_batch_size=len(counts), gradient_checkpointing_kwargs=None),
    )
    inputs = RLOOTrainer._generate_and_score_completions(self, [{"prompt": "a question"}] * len(counts))
    loss = RLOOTrainer._compute_loss(self, SimpleNamespace(field="logprobs"), inputs)
    return {"advantages": per_token(inputs["advantages"], batch)} | gradients(loss, gradient=batch.logprobs)


FUNCTIONS: dict[str, Callable[..., Answer]] = {
    "verl_loss": verl_loss,
    "verl_aggregation": verl_aggregation,
    "verl_kl": verl_kl,
    "verl_weights": verl_weights,
    "verl_rejection": verl_rejection,
    "trl_grpo_loss": trl_grpo_loss,
    "trl_rloo_loss": trl_rloo_loss,
}


def answer(batches: dict[str, dict[str, Tensor]], cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Answer]]:
    found: dict[str, dict[str, Answer]] = {}
    for case, asked in cases.items():
        found[case] = {}
        for name in asked["batches"]:
            batch = SimpleNamespace(**{key: value.clone() for key, value in batches[name].items()})
            batch.logprobs.requires_grad_()
            batch.new_values.requires_grad_()
            found[case][name] = FUNCTIONS[asked["function"]](batch, **asked["options"])
    return found


if __name__ == "__main__":
    # TRL makes tensors from Python numbers, of the default type: in float32, 1.05 is wrong in the eighth digit.
    torch.set_default_dtype(torch.float64)
    PartialState(cpu=True)  # TRL's gather asks it, and it must not look for a GPU
    request, target = map(Path, sys.argv[1:])
    asked = torch.load(request)
    torch.save(answer(asked["batches"], asked["cases"]), target)
