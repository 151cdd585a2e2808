"""The embedded world: generated, repeatable, and answerable by searching alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_gym.questions.world import SPLITS, World

SEEDS = st.integers(0, 10_000)


@given(SEEDS)
@settings(max_examples=20)
def test_a_seed_makes_one_world(seed: int) -> None:
    first, second = World(seed), World(seed)
    assert first.corpus == second.corpus
    assert all(first.questions(split) == second.questions(split) for split in SPLITS)
    assert World(seed + 1).corpus != first.corpus


@given(SEEDS)
@settings(max_examples=20)
def test_splits_share_no_entity(seed: int) -> None:
    world = World(seed)
    names = [{entity.name for entity in world.entities(split)} for split in SPLITS]
    assert len(set.union(*names)) == sum(map(len, names)) == len(world.corpus)
    for split, own in zip(SPLITS, names, strict=True):
        for question in world.questions(split, years=True):
            assert set(question.metadata["path"]) <= own
            assert question.golds[0].isdigit() or question.golds[0] in own
        assert all(question.golds[0] in own for question in world.questions(split))


@given(SEEDS)
@settings(max_examples=10)
def test_an_answer_stands_in_the_passage_of_the_last_hop_and_not_in_the_question(seed: int) -> None:
    world = World(seed, {"test": 1})
    texts = {passage.title: passage.text for passage in world.corpus}
    for question in world.questions("test", years=True):
        hops = world.hops(question)
        assert [hop.subject.name for hop in hops] == question.metadata["path"]
        assert all(hop.answer in texts[hop.subject.name] for hop in hops)
        assert hops[-1].answer == question.golds[0]
        assert question.golds[0] not in question.text
        assert question.metadata["path"][0] in question.text
        # The entities on the way are for the policy to find.
        assert all(name not in question.text for name in question.metadata["path"][1:])


def test_questions_are_an_even_mix_of_hops() -> None:
    questions = World(0).questions("test")
    assert len({question.id for question in questions}) == len(questions) >= 512
    assert [question.metadata["hops"] for question in questions[:6]] == [1, 2, 3, 1, 2, 3]
    assert {q.metadata["hops"] for q in World(0).questions("test", hops=(2,))} == {2}


def test_questions_read_like_english() -> None:
    question = World(0).questions("train", hops=(3,))[0]
    assert question.text == "In which country is the birthplace of the mayor of New Glenrock?"


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(ValueError, match="splits train, dev, test"):
        World(0, {"validation": 1})
    with pytest.raises(ValueError, match="size >= 1"):
        World(0, {"train": 0})
    with pytest.raises(ValueError, match="too few names"):
        World(0, {"train": 1000})
    with pytest.raises(ValueError, match="unknown split"):
        World(0, {"train": 1}).questions("test")
    with pytest.raises(ValueError, match="1 to 3 hops"):
        World(0).questions(hops=(4,))
