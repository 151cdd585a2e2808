"""Noisy demonstrations in the embedded world: what the embedded policy imitates before it is reinforced."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.questions.world import Hop, World
from search_gym.retrieval import Hit, Retriever, SearchFailed
from search_gym.rules import Rules, Search
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory


@dataclass(frozen=True)
class Noise:
    """How often a demonstration goes wrong, as shares of all; the rest is right.

    A policy that imitates them knows the format and how to read, but not what pays: that is left to reinforcement.
    """

    blind: float = 0.12
    """Answers without a search, by any name."""
    early: float = 0.50
    """Stops after the first of several hops, and answers with what that found. Cannot befall 1-hop questions."""
    careless: float = 0.12
    """Asks with half a name, and answers with the title of a passage that it got."""


@dataclass
class Demonstrator:
    """Plays episodes of a world as a noisy expert would.

    Args:
        world: where the questions come from.
        retriever: over the world's corpus.
        tokenizer, rules: of the episodes.
        noise: how often it errs.
        rng: its random numbers.
    """

    world: World
    retriever: Retriever
    tokenizer: Tokenizer
    rules: Rules
    noise: Noise
    rng: random.Random

    def demonstrate(self, questions: Sequence[Question]) -> list[Trajectory]:
        """One demonstration a question, searching for all of them at once."""
        scripts = [self._script(question) for question in questions]
        episodes = [Episode(question, self.tokenizer, self.rules) for question in questions]
        turns: list[str | None] = [next(script) for script in scripts]
        while True:
            searching = []
            for i, (episode, turn) in enumerate(zip(episodes, turns, strict=True)):
                if turn is not None:
                    events = episode.feed(self.tokenizer.encode(turn))
                    searching += [(i, event.query) for event in events if isinstance(event, Search)]
            turns = [None] * len(episodes)
            if not searching:
                return [episode.trajectory() for episode in episodes]
            found = self.retriever.search([query for _, query in searching], self.rules.top_k)
            for (i, _), hits in zip(searching, found, strict=True):
                episodes[i].observe(hits)
                turns[i] = scripts[i].send([] if isinstance(hits, SearchFailed) else list(hits))

    def _script(self, question: Question) -> Generator[str, list[Hit], None]:
        """The turns of one demonstration; each search is sent the hits that it brought."""
        hops = self.world.hops(question)
        draw = self.rng.random()
        if draw < self.noise.blind:
            yield answer(hops[-1], self._any_name(hops[-1]))
        elif draw < self.noise.blind + self.noise.careless:
            query = self.rng.choice(hops[0].subject.name.split())
            hits = yield search(hops[0], query)
            yield answer(hops[-1], self.rng.choice(hits).title if hits else self._any_name(hops[-1]))
        elif draw < self.noise.blind + self.noise.careless + self.noise.early:
            yield search(hops[0], hops[0].subject.name)
            yield answer(hops[0], hops[0].answer)
        else:
            for hop in hops:
                yield search(hop, hop.subject.name)
            yield answer(hops[-1], hops[-1].answer)

    def _any_name(self, hop: Hop) -> str:
        """An answer of the right kind, and almost surely wrong."""
        split = self.rng.choice(self.world.splits)
        entity = self.rng.choice([e for e in self.world.entities(split) if hop.relation in e.facts])
        fact = entity.facts[hop.relation]
        return fact if isinstance(fact, str) else fact.name


def search(hop: Hop, query: str) -> str:
    """The text of a turn that searches."""
    return f"<think> I need {hop.description} </think> <search> {query} </search>"


def answer(hop: Hop, text: str) -> str:
    """The text of a turn that answers."""
    return f"<think> I know {hop.description} </think> <answer> {text} </answer>"
