"""CausalLMPolicy: a causal language model as a policy, scored where it acted."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from algos.training.scoring import MAX_LOGITS, score_tokens


class Scores(NamedTuple):
    """What a policy says of sampled tokens; 0 where the mask is 0."""

    logprobs: Tensor
    """[B, T]; [b, t] is the log-probability of ids[b, t] given ids[b, :t]. Carries the gradient."""
    entropy: Tensor
    """[B, T]; entropy in nats of the distribution that ids[b, t] was drawn from. Detached."""


_AFTER_THE_HEAD = {
    "final_logit_softcapping": None,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
    "output_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
}
"""What bends the logits of some models after the head, and the value (beside None) at which it does nothing."""


class CausalLMPolicy(nn.Module):
    """A Hugging Face causal language model.

    The head runs only where a token counts, and never for many tokens at once: retrieved passages are most of a
    sequence and take no loss. Under `torch.autocast` the model computes in half precision; log-probs are float32.

    For FSDP wrap this module, not the model, and leave the head in its outermost unit: `forward` calls the head by
    itself, and how often depends on the number of tokens, which is not the same on all ranks.

    Args:
        model: any decoder whose logits are its output embedding applied to its last hidden state; a `PeftModel` of one,
            too.
        max_logits: the most logits (tokens times vocabulary) that exist at once, > 0. It changes memory and speed,
            not the scores.

    Raises:
        ValueError: if the model bends its logits after the head (soft-capping), for then the scores would be wrong.
    """

    def __init__(self, model: PreTrainedModel, max_logits: int = MAX_LOGITS) -> None:
        super().__init__()
        if max_logits < 1:
            raise ValueError(f"max_logits must be at least 1, not {max_logits}")
        # What peft wraps is found inside: the wrapper's `base_model` would be the whole model, head included.
        causal = model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore
        text = causal.config.get_text_config()
        bent = [name for name, plain in _AFTER_THE_HEAD.items() if getattr(text, name, None) not in (None, plain)]
        if bent:
            raise ValueError(
                f"{type(causal).__name__} caps or scales its logits after the head ({', '.join(bent)} in its config), "
                "which is not supported"
            )
        if causal.get_output_embeddings() is None:
            raise ValueError(f"{type(causal).__name__} has no language-model head: it is not a causal language model")
        self.model = model
        self.max_logits = max_logits
        self.vocabulary: int = text.vocab_size
        self._causal = [causal]  # in a list, for a module must not be registered twice
        # transformers renamed the argument in 5.20; both spellings are in use.
        parameters = inspect.signature(inspect.unwrap(causal.base_model.forward)).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.model.device

    def recompute_activations(self) -> None:
        """From now on a layer computes its activations anew in the backward pass: less memory for a third more time."""
        causal: Any = self._causal[0]  # transformers 5.20 renamed the method; both spellings are in use
        (getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable)()

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Last hidden states, [B, T, H].

        Args:
            ids: int64 [B, T].
            attention_mask: None where each id sees all ids before it; [B, T] of padded rows, or bool [B, 1, T, end] as
                a `RaggedCache` gives it.
            positions: int64 [B, T]; counted from 0 unless given.
            cache: read and extended where given.
        """
        output = self._causal[0].base_model(
            input_ids=ids,
            attention_mask=attention_mask,
            position_ids=positions,
            use_cache=cache is not None,
            **{self._cache_argument: cache},
        )
        return output.last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits in float32 (float64 where the model is), [..., V], of hidden states [..., H]."""
        head = self._causal[0].get_output_embeddings()  # at each call, for an adapter takes the head's place
        assert head is not None
        logits = head(hidden)
        return logits if logits.dtype == torch.float64 else logits.float()

    def forward(self, ids: Tensor, lengths: Tensor, mask: Tensor, temperature: float = 1.0) -> Scores:
        """Score the tokens that were sampled.

        Columns from the last sampled token on are not read: nothing that counts depends on them.

        Args:
            ids: int64 [B, T], right-padded with anything.
            lengths: int64 [B], how many ids of each row are real.
            mask: bool [B, T], True where the policy sampled the id; False at position 0, which nothing predicts.
            temperature: that of the sampling, > 0: the scores are those of the distribution that was sampled from.
        """
        rows, columns = mask.nonzero(as_tuple=True)
        if bool((columns == 0).any()):
            raise ValueError("mask is True at position 0, but no token stands before it that could predict it")
        if bool((columns >= lengths[rows]).any()):
            raise ValueError("mask is True past the length of a row, at padding that nobody sampled")
        width = int(columns.max()) if len(columns) else 1
        # No attention mask: what stands on the right of a token does not change it, so padding does not either, and
        # attention kernels are at their best when they know of nothing but causality.
        hidden = self.hidden(ids[:, :width])
        chosen, spread = score_tokens(
            self.logits,
            hidden[rows, columns - 1],
            ids[rows, columns],
            vocabulary=self.vocabulary,
            temperature=temperature,
            max_logits=self.max_logits,
        )
        zeros = chosen.new_zeros(ids.shape)
        return Scores(zeros.index_put((rows, columns), chosen), zeros.index_put((rows, columns), spread))
