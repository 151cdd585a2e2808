"""Plays episodes with an engine: they join and leave, and none waits for the longest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from algos.training.engines import Engine, Request
from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.retrieval import Retriever
from search_gym.rules import Rules
from search_gym.searching import carry_out
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory


def play(
    questions: Sequence[Question],
    *,
    engine: Engine,
    tokenizer: Tokenizer,
    retriever: Retriever,
    rules: Rules,
    temperature: float = 1.0,
    concurrency: int | None = None,
    overlap_searches: bool = False,
    on_done: Callable[[int], None] = lambda _: None,
) -> list[Trajectory]:
    """Play one episode for each question, to the end.

    Turns are sampled side by side. The searches of all episodes that ended a turn together go out as one batch, and
    those episodes go on while others are still at their turn.

    Args:
        questions: may hold a question several times, as group-based algorithms need it.
        engine: samples nothing else meanwhile, and is left without these sequences, whatever happens.
        tokenizer: that of the engine's policy.
        retriever: answers the searches.
        rules: of the episodes.
        temperature: of the sampling; 0 is greedy.
        concurrency: how many episodes are played at once, >= 1; the next begins as one ends. None: all of them.
        overlap_searches: search in a thread of its own while the engine goes on; queries that come up meanwhile go out
            together afterwards. The retriever, and a reward where an observation fills the context, run in that
            thread. Without it, the same calls give the same trajectories.
        on_done: called with the number of episodes that have ended since the last call.

    Returns:
        One trajectory a question, in order.
    """
    if concurrency is not None and concurrency < 1:
        raise ValueError(f"at least one episode is played at once, not {concurrency}")
    call = object()  # the keys of other calls that play with the same engine are others
    episodes: _Episodes = {(call, n): Episode(question, tokenizer, rules) for n, question in enumerate(questions)}
    waiting, ready = deque(episodes), list[Hashable]()
    begun = sampled = 0  # episodes that have begun and not ended; those of them that the engine samples
    searches = _Searches(episodes, retriever, overlap_searches)
    try:
        while waiting or begun:
            new = [waiting.popleft() for _ in range(min(len(waiting), (concurrency or len(episodes)) - begun))]
            ready += new
            engine.submit([Request(key, episodes[key].ids, episodes[key].room, temperature) for key in ready])
            samples = engine.collect() if ready or sampled else []
            sampled += len(ready) - len(samples)
            for sample in samples:
                episodes[sample.key].feed(sample.ids, sample.logprobs)
            moved = [sample.key for sample in samples if episodes[sample.key].pending is None]
            asking = [sample.key for sample in samples if episodes[sample.key].pending is not None]
            moved += searches.exchange(asking, idle=not sampled and not moved)
            ended = [key for key in moved if episodes[key].done]
            ready = [key for key in moved if not episodes[key].done]
            begun += len(new) - len(ended)
            if ended:
                engine.forget(ended)
                on_done(len(ended))
    finally:
        engine.forget(episodes)
        searches.close()
    return [episode.trajectory() for episode in episodes.values()]


_Episodes = dict[Hashable, Episode]


class _Searches:
    """Carries out searches, one batch after the other, in the same thread or in one of its own."""

    def __init__(self, episodes: _Episodes, retriever: Retriever, overlap: bool) -> None:
        self._episodes, self._retriever = episodes, retriever
        self._pool = ThreadPoolExecutor(1, "searches") if overlap else None
        self._asking: list[Hashable] = []  # for the next batch
        self._out: tuple[list[Hashable], Future[None]] | None = None  # the batch that is searched for

    def exchange(self, asking: Sequence[Hashable], idle: bool) -> list[Hashable]:
        """Take who asks for passages, and give who has got them.

        Args:
            asking: keys of episodes with a search pending.
            idle: nothing else is left to do: wait for the batch that is out.

        Raises:
            Exception: whatever the search raised.
        """
        self._asking += asking
        if self._pool is None:
            self._search(self._asking)
            return self._take()
        answered: list[Hashable] = []
        if self._out is not None and (idle or self._out[1].done()):
            answered, search = self._out
            search.result()
            self._out = None
        if self._asking and self._out is None:
            batch = self._take()
            self._out = batch, self._pool.submit(self._search, batch)
        return answered

    def close(self) -> None:
        """Let the search that is out end, and its thread."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _take(self) -> list[Hashable]:
        taken, self._asking = self._asking, []
        return taken

    def _search(self, keys: Sequence[Hashable]) -> None:
        carry_out([self._episodes[key] for key in keys], self._retriever)
