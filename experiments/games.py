"""What an episode may do, in every experiment: what is searched, the prompt, the budgets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from search_gym import sources
from search_gym.retrieval import Retriever
from search_gym.retrieval.strict import OnSearchError
from search_gym.rules import Rules


@dataclass(frozen=True)
class Game:
    """What is searched, and by which rules."""

    corpus: str = ""
    """Passages to search: "embedded", a file or data set of passages, or a folder that `search-gym index` made. Empty:
    "embedded", or what the retriever brings."""
    retriever: str = "bm25"
    """What searches in it: bm25, dense, hybrid or rerank. Or what brings its own passages: a folder that `search-gym
    index` made, or http://host:port, a server."""
    on_search_error: OnSearchError = "tell"
    """What becomes of a search that fails: the policy is told, and the run says at its end how many did; or the run
    stops."""
    search_cache: Path | None = None
    """A file in which the results of searches are kept, for all runs and processes. A run that is gone on with may use
    another one."""
    prompt: str = "brief"
    """Template of the prompt: search-r1, sapo, chat, few-shot or brief."""
    max_searches: int = 4
    """Searches in an episode."""
    top_k: int = 3
    """Passages for a search."""
    max_turn_tokens: int = 40
    """Tokens that a turn may have."""
    max_observation_tokens: int = 128
    """Tokens that the passages of a search may have."""
    max_context_tokens: int = 512
    """Tokens of an episode in all."""

    def rules(self) -> Rules:
        """The rules of the episodes."""
        return Rules(
            prompt=self.prompt,
            max_searches=self.max_searches,
            top_k=self.top_k,
            max_turn_tokens=self.max_turn_tokens,
            max_observation_tokens=self.max_observation_tokens,
            max_context_tokens=self.max_context_tokens,
        )

    def open_retriever(self) -> Retriever:
        """What answers the searches."""
        return sources.open_retriever(
            self.retriever, self.corpus or None, on_search_error=self.on_search_error, cache=self.search_cache
        )


_PAPER = Game(
    # arXiv 2603.10069, Table 4 and text: 5 searches, 3 passages of together 512 tokens, and responses of 2,048 tokens.
    # All that, with 512 tokens for a prompt, is the context.
    prompt="search-r1",
    max_searches=5,
    top_k=3,
    max_turn_tokens=2048,
    max_observation_tokens=512,
    max_context_tokens=512 + 2048 + 5 * 512,
)
# What suits a model, by what `models.kind` says of it.
GAMES: dict[str, Game] = {
    "embedded": Game(),
    # A model of 135 M parameters on two cores: few and short turns.
    "smollm2": Game(
        prompt="few-shot",
        max_searches=2,
        top_k=2,
        max_turn_tokens=48,
        max_observation_tokens=224,
        max_context_tokens=896,
    ),
    "base": _PAPER,
    "chat": replace(_PAPER, prompt="chat"),
}
