"""Log-probs and entropies of sampled tokens from hidden states, a bounded number of logits at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

MAX_LOGITS = 2**24
"""The most logits (tokens times vocabulary) that are held at once, unless told otherwise: 64 MiB in float32. With a
quarter of it and less, the gradient of the head, which every chunk makes whole, costs more than the chunk itself; with
twice as many, memory grows and time does not fall (measured at a vocabulary of 49 k)."""


def score_tokens(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    ids: Tensor,
    *,
    vocabulary: int,
    temperature: float = 1.0,
    max_logits: int = MAX_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Log-probs of `ids` and the entropies of the distributions they were drawn from, in chunks of tokens.

    Where a gradient is wanted and there are several chunks, the logits of each are thrown away and computed again in
    the backward pass, so that about four tensors of `max_logits` elements are the most that ever exists. The head is
    called, never read: it may be tied, frozen, sharded, or wrapped by an adapter. It is called at least once, if need
    be with no token: where the ranks of a distributed run must all have a gradient of it, one without tokens has 0.

    An autograd function that multiplies by the head's weight itself could add up the weight's gradient in place. It
    was measured: the head took 0 to 30 % less time and two tensors of the head's size less memory. The head is a
    twentieth of a step, and the function would be wrong for a head that is wrapped.

    Args:
        head: [n, H] to logits [n, V], in float32 or float64 even if it computes in half precision.
        hidden: [N, H], the state after the token before each of `ids`.
        ids: int64 [N].
        vocabulary: V.
        temperature: divides the logits, > 0.
        max_logits: the most logits of a chunk; a chunk has at least one token, whatever the vocabulary.

    Returns:
        Log-probs [N], which carry the gradient, and entropies in nats [N], detached, of the type of the logits.
    """

    def score(hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = head(hidden)
        logprobs = torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)
        del logits
        chosen = logprobs.gather(1, ids[:, None]).squeeze(1)
        # Last, for the second computation ends as soon as it has what the backward pass needs: it does without this.
        with torch.no_grad():
            entropy = logprobs.exp().mul_(logprobs).nan_to_num_(0.0).sum(-1).neg_()  # 0 * -inf is 0 here
        return chosen, entropy

    chunks = -(-len(ids) // max(1, max_logits // vocabulary))
    if chunks <= 1:
        return score(hidden, ids)
    parts = zip(hidden.tensor_split(chunks), ids.tensor_split(chunks), strict=True)
    scores = [checkpoint(score, *part, use_reentrant=False) for part in parts]
    return torch.cat([chosen for chosen, _ in scores]), torch.cat([entropy for _, entropy in scores])
