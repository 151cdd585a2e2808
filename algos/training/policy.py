"""CausalLMPolicy: a causal language model as a policy, scored where it acted."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache


class Scores(NamedTuple):
    """What a policy says of sampled tokens; 0 where the mask is 0."""

    logprobs: Tensor
    """[B, T]; [b, t] is the log-probability of ids[b, t] given ids[b, :t]. Carries the gradient."""
    entropy: Tensor
    """[B, T]; entropy in nats of the distribution that ids[b, t] was drawn from. Detached."""


class CausalLMPolicy(nn.Module):
    """A Hugging Face causal language model.

    The head runs only where a token counts: retrieved passages are most of a sequence and take no loss.

    Args:
        model: any decoder whose logits are its output embedding applied to its last hidden state.

    Raises:
        ValueError: if the model bends its logits after the head (soft-capping), for then the scores would be wrong.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        if (
            getattr(model.config, "final_logit_softcapping", None)
            or getattr(model.config, "logits_scaling", 1.0) != 1.0
        ):
            raise ValueError(f"{type(model).__name__} caps or scales its logits after the head, which is not supported")
        head = model.get_output_embeddings()
        if head is None:
            raise ValueError(f"{type(model).__name__} has no language-model head: it is not a causal language model")
        self.model = model
        self._head = [head]  # in a list, for a module must not be registered twice
        # transformers renamed the argument in 5.20; both spellings are in use.
        parameters = inspect.signature(inspect.unwrap(model.base_model.forward)).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.model.device

    def hidden(
        self, ids: Tensor, attention_mask: Tensor, positions: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Last hidden states, [B, T, H].

        Args:
            ids: int64 [B, T].
            attention_mask: [B, T] of right-padded rows, or bool [B, 1, T, end] as a `RaggedCache` gives it.
            positions: int64 [B, T]; counted from 0 unless given.
            cache: read and extended where given.
        """
        output = self.model.base_model(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=positions,
            use_cache=cache is not None,
            **{self._cache_argument: cache},
        )
        return output.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in float32, [..., V], of hidden states [..., H]."""
        return self._head[0](hidden).float()

    def forward(self, ids: Tensor, lengths: Tensor, mask: Tensor, temperature: float = 1.0) -> Scores:
        """Score the tokens that were sampled.

        Args:
            ids: int64 [B, T], right-padded with anything.
            lengths: int64 [B], how many ids of each row are real.
            mask: bool [B, T], True where the policy sampled the id; False at position 0, which nothing predicts.
            temperature: that of the sampling, > 0: the scores are those of the distribution that was sampled from.
        """
        if bool(mask[:, 0].any()):
            raise ValueError("mask is True at position 0, but no token stands before it that could predict it")
        width = int(lengths.max())  # columns in which all rows are padding cost nothing
        attention = torch.arange(width, device=ids.device) < lengths[:, None]
        hidden = self.hidden(ids[:, :width], attention)
        rows, columns = mask.nonzero(as_tuple=True)
        logps = torch.log_softmax(self.logits(hidden[rows, columns - 1]) / temperature, dim=-1)
        chosen = logps.gather(1, ids[rows, columns][:, None]).squeeze(1)
        with torch.no_grad():
            spread = -(logps.exp() * logps).nan_to_num(0.0).sum(-1)  # 0 * -inf is 0 here
        zeros = chosen.new_zeros(ids.shape)
        return Scores(zeros.index_put((rows, columns), chosen), zeros.index_put((rows, columns), spread))
