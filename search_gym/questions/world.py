"""The embedded world: films, people, cities and companies that exist nowhere else, and questions about them.

A seed makes a world: entities with facts that lead from one to another, a passage for each entity, and questions that
follow one, two or three facts ("In which country is the birthplace of the director of the film Silver Harbor?").
Names are drawn at random, so no answer can be known beforehand: it has to be searched for.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from search_gym.questions import Question, lexicon
from search_gym.retrieval import Passage

SPLITS = ("train", "dev", "test")
MAX_HOPS = 3
# How many of each kind one unit of size makes.
_PROPORTIONS = {"film": 6, "book": 4, "person": 8, "company": 4, "city": 4, "country": 1}


@dataclass(eq=False)
class Entity:
    """A thing of the world; `facts` lead from a relation's name to another entity, or to a year."""

    kind: str
    name: str
    facts: dict[str, Entity | str] = field(default_factory=dict, repr=False)

    @property
    def mention(self) -> str:
        """How a question calls it: "the film Silver Harbor"."""
        return lexicon.MENTIONS[self.kind].format(self.name)


@dataclass(frozen=True)
class Hop:
    """One step on the way to an answer: what is asked of `subject`, and what its passage says."""

    relation: str
    subject: Entity
    object: Entity | str

    @property
    def description(self) -> str:
        """What the hop looks for: "the director of the film Silver Harbor", "the year of …"."""
        describe = lexicon.RELATIONS[self.relation].describe or "the year of {}"
        return describe.format(self.subject.mention)

    @property
    def answer(self) -> str:
        """The name or the year that the hop finds."""
        return self.object if isinstance(self.object, str) else self.object.name


class World:
    """A generated world.

    Args:
        seed: the same seed gives the same world.
        sizes: for each split, how many times 6 films, 4 books, 8 people, 4 companies, 4 cities and 1 country it has.
            No entity is in two splits, and no fact leads from one split to another; all splits share one corpus, so
            that each has the others' passages as distractors.

    Raises:
        ValueError: if a split is unknown or a size is not positive, or if the names do not suffice (about 14 units).
    """

    def __init__(self, seed: int = 0, sizes: dict[str, int] | None = None) -> None:
        sizes = {"train": 6, "dev": 2, "test": 4} if sizes is None else sizes
        for split, size in sizes.items():
            if split not in SPLITS or size < 1:
                raise ValueError(
                    f"a world has the splits {', '.join(SPLITS)}, each of size >= 1; got {split!r}: {size}"
                )
        self.seed = seed
        rng = random.Random(seed)
        names = {kind: _names(kind, rng) for kind in _PROPORTIONS}
        self._splits = {split: _populate(size, names, rng) for split, size in sizes.items()}
        self._passages = [_passage(entity, rng) for entities in self._splits.values() for entity in entities]
        rng.shuffle(self._passages)  # a corpus sorted by split would tell the splits apart by rank among equals

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that this world has."""
        return tuple(self._splits)

    @property
    def corpus(self) -> list[Passage]:
        """A passage for every entity of every split."""
        return [Passage(str(i), title, text) for i, (title, text) in enumerate(self._passages)]

    def entities(self, split: str) -> list[Entity]:
        """The entities of a split."""
        if split not in self._splits:
            raise ValueError(f"unknown split {split!r}; this world has {', '.join(self._splits)}")
        return list(self._splits[split])

    def questions(
        self, split: str = "train", hops: tuple[int, ...] = (1, 2, 3), *, years: bool = False
    ) -> list[Question]:
        """Questions of a split in a random but fixed order, an equal number for each number of hops.

        The answer is a name, or with `years` perhaps a year. Years are the harder kind for a tiny policy: each is a
        word of its own that it seldom meets, while the words of names turn up everywhere.

        Each has its number of hops and the entities on the way ("path") in its metadata, and an id such as
        "train/2hop/17". Chains of facts that come back to an entity on the way are left out.
        """
        entities = self.entities(split)
        rng = random.Random(f"{self.seed} {split}")
        by_hops = []
        for count in hops:
            if not 1 <= count <= MAX_HOPS:
                raise ValueError(f"questions have 1 to {MAX_HOPS} hops, not {count}")
            chains = [chain for entity in entities for chain in _chains(entity, count)]
            chains = [chain for chain in chains if years or isinstance(chain[-1].object, Entity)]
            rng.shuffle(chains)
            by_hops.append(chains)
        size = min(len(chains) for chains in by_hops)
        return [
            _question(f"{split}/{len(chain)}hop/{i}", chain)
            for i, chains in enumerate(zip(*(chains[:size] for chains in by_hops), strict=True))
            for chain in chains
        ]

    def hops(self, question: Question) -> list[Hop]:
        """The way to the answer of one of this world's questions, for demonstrations."""
        split = question.id.split("/", 1)[0]
        subject = next(e for e in self.entities(split) if e.name == question.metadata["path"][0])
        chain = []
        for relation in question.metadata["relations"]:
            target = subject.facts[relation]
            chain.append(Hop(relation, subject, target))
            if isinstance(target, Entity):
                subject = target
        return chain


def _names(kind: str, rng: random.Random) -> Iterator[str]:
    """All names of a kind in a random order, each once."""
    parts, form = {
        "film": ((lexicon.FILM_ADJECTIVES, lexicon.FILM_NOUNS), "{} {}"),
        "book": ((lexicon.BOOK_NOUNS, lexicon.BOOK_TOPICS), "{} of {}"),
        "person": ((lexicon.FIRST_NAMES, lexicon.LAST_NAMES), "{} {}"),
        "company": ((lexicon.COMPANY_STEMS, lexicon.COMPANY_FORMS), "{} {}"),
        "city": ((lexicon.CITY_PREFIXES, lexicon.CITY_STEMS), "{} {}"),
        "country": ((lexicon.COUNTRY_STEMS, lexicon.COUNTRY_FORMS), "{} {}"),
    }[kind]
    names = [form.format(*pair) for pair in itertools.product(*parts)]
    rng.shuffle(names)
    return iter(names)


def _populate(size: int, names: dict[str, Iterator[str]], rng: random.Random) -> list[Entity]:
    """Entities of one split, and the facts between them."""
    entities = []
    for kind, proportion in _PROPORTIONS.items():
        drawn = list(itertools.islice(names[kind], proportion * size))
        if len(drawn) < proportion * size:
            raise ValueError(f"the lexicon has too few names for so many of kind {kind!r}: make the world smaller")
        entities += [Entity(kind, name) for name in drawn]
    by_kind = {kind: [e for e in entities if e.kind == kind] for kind in _PROPORTIONS}
    for entity in entities:
        for name, relation in lexicon.RELATIONS.items():
            if relation.subject == entity.kind:
                year = str(rng.randint(lexicon.FIRST_YEAR, lexicon.LAST_YEAR))
                entity.facts[name] = year if relation.object == "year" else rng.choice(by_kind[relation.object])
    return entities


def _passage(entity: Entity, rng: random.Random) -> tuple[str, str]:
    facts = {name: fact if isinstance(fact, str) else fact.name for name, fact in entity.facts.items()}
    template = rng.choice(lexicon.PASSAGES[entity.kind])
    return entity.name, template.format(name=entity.name, profession=rng.choice(lexicon.PROFESSIONS), **facts)


def _chains(start: Entity, hops: int) -> Iterator[list[Hop]]:
    """All ways of `hops` facts from an entity that meet no entity twice."""

    def extend(chain: list[Hop], at: Entity, seen: set[str]) -> Iterator[list[Hop]]:
        for relation, target in at.facts.items():
            longer = [*chain, Hop(relation, at, target)]
            if len(longer) == hops:
                if isinstance(target, str) or target.name not in seen:
                    yield longer
            elif isinstance(target, Entity) and target.name not in seen:
                yield from extend(longer, target, seen | {target.name})

    yield from extend([], start, {start.name})


def _question(identifier: str, chain: list[Hop]) -> Question:
    phrase = chain[0].subject.mention
    for hop in chain[:-1]:
        phrase = lexicon.RELATIONS[hop.relation].describe.format(phrase)
    return Question(
        id=identifier,
        text=lexicon.RELATIONS[chain[-1].relation].ask.format(phrase),
        golds=(chain[-1].answer,),
        metadata={
            "hops": len(chain),
            "relations": [hop.relation for hop in chain],
            "path": [hop.subject.name for hop in chain],
        },
    )
