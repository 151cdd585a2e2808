"""Trajectories to a Batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from algos.batch import Batch
from search_gym.actions import action_span
from search_gym.tokenizers import TextStream, Tokenizer
from search_gym.trajectory import Trajectory


def collate(
    trajectories: Sequence[Trajectory],
    groups: Sequence[int],
    device: torch.device | str = "cpu",
    tokenizer: Tokenizer | None = None,
) -> Batch:
    """Pad trajectories to one length.

    Padding is told by `lengths` and `mask`, never by the value of an id: a policy may sample the padding id.

    Args:
        trajectories: B of them, each with at least one id.
        groups: a number for each; equal for those that answer the same question.
        device: of the batch.
        tokenizer: that of the policy; without it the batch does not say which tokens are of an action.

    Returns:
        A batch whose `old_logprobs` are those of the sampler until the trainer puts its own there.
    """
    if len(groups) != len(trajectories):
        raise ValueError(f"{len(trajectories)} trajectories came with {len(groups)} groups")
    width = max(len(trajectory.ids) for trajectory in trajectories)

    def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros(len(rows), width, dtype=dtype)
        for target, row in zip(tensor, rows, strict=True):
            target[: len(row)] = torch.tensor(row, dtype=dtype)
        return tensor.to(device)

    logprobs = padded([t.logprobs for t in trajectories], torch.float32)
    actions = None if tokenizer is None else padded([action_tokens(t, tokenizer) for t in trajectories], torch.bool)
    return Batch(
        mask=padded([t.mask for t in trajectories], torch.bool),
        old_logprobs=logprobs,
        rollout_logprobs=logprobs,
        rewards=torch.tensor([t.reward for t in trajectories], dtype=torch.float32, device=device),
        groups=torch.tensor(groups, dtype=torch.int64, device=device),
        actions=actions,
        truncated=torch.tensor([bool(t.truncated) for t in trajectories], device=device),
        ids=padded([t.ids for t in trajectories], torch.int64),
        lengths=torch.tensor([len(t.ids) for t in trajectories], dtype=torch.int64, device=device),
    )


def action_tokens(trajectory: Trajectory, tokenizer: Tokenizer) -> list[bool]:
    """For each id, whether the policy sampled it as part of <search>…</search> or <answer>…</answer>, tags included.

    A token that holds characters of an action and others belongs to the action. A turn ends with the tag that closes
    its action, so that the action is the turn's last tokens, from the one that holds the "<" of its opening tag on.
    """
    found = [False] * len(trajectory.ids)
    for turn in trajectory.turns:
        span = action_span(turn.text)
        if span is None:
            continue
        stream, read = TextStream(tokenizer), 0
        first, end = turn.policy
        while first < end and (read := read + len(stream.push(trajectory.ids[first]))) <= span[0]:
            first += 1
        found[first:end] = [True] * (end - first)
    return found


def read_lengths(mask: torch.Tensor) -> torch.Tensor:
    """How many ids of each row a policy must read to score the row: those before the last sampled one.

    Cut by these, a row that ends in passages or a prompt whose response counts for nothing takes no room for them.

    Args:
        mask: bool [B, T], True where the policy sampled the id.

    Returns:
        int64 [B], >= 1: a policy reads one id even where it sampled none.
    """
    columns = torch.arange(mask.shape[1], device=mask.device)
    return (mask * columns).amax(1).clamp(min=1)


def cut_by_length(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Cut rows into micro-batches of similar length, so that little is padding.

    Rows are not packed into one long row. Without a kernel for rows of unlike lengths (flash attention on a GPU), a
    packed row of length n is a square of n * n scores in attention, of which a block mask throws most away; rows side
    by side cost the sum of their own squares. And what packing saves, padding, is a few per cent after bucketing.

    Args:
        lengths: of the rows, as `read_lengths` gives them.
        tokens: how many tokens a micro-batch may hold, padding included; a row that is longer makes one of its own.

    Returns:
        Row numbers of each micro-batch; each row is in exactly one.
    """
    if tokens < 1:
        raise ValueError(f"a micro-batch holds at least 1 token, not {tokens}")
    parts: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):  # the newest row is the longest of its part
        if parts and (len(parts[-1]) + 1) * lengths[row] <= tokens:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
