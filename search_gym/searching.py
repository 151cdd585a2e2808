"""Carrying out the searches that episodes ask for, one batch for all of them."""

from __future__ import annotations

from collections.abc import Iterable

from search_gym.episode import Episode
from search_gym.retrieval import Retriever
from search_gym.retrieval.asking import ask


def carry_out(episodes: Iterable[Episode], retriever: Retriever) -> None:
    """Search for every episode that has a search pending, in one call, and hand each what was found.

    Args:
        episodes: those that ask for nothing are left as they are.
        retriever: is asked once, or not at all where nothing is pending.

    Raises:
        ValueError: if the retriever does not give one result a query.
    """
    waiting = [(episode, episode.pending.query) for episode in episodes if episode.pending is not None]
    if not waiting:
        return
    # Episodes that are played together share their rules; where they do not, each shows no more than its own top_k.
    found = ask(retriever, [query for _, query in waiting], max(episode.rules.top_k for episode, _ in waiting))
    for (episode, _), hits in zip(waiting, found, strict=True):
        episode.observe(hits)
