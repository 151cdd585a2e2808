"""HFEngine: samples what the policy says, reads nothing twice, and keeps its cache across turns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algos.training.collate import collate
from algos.training.engines import Request
from algos.training.engines.hf import HFEngine
from algos.training.policy import CausalLMPolicy
from algos.training.rollout import play
from experiments.warm_start import embedded_model
from search_gym import Rules, World, sources, tokenizers

TOKENIZER = tokenizers.embedded()
WORLD = World(0)
RULES = Rules(prompt="brief", max_searches=2, max_turn_tokens=12, max_observation_tokens=60, max_context_tokens=300)


@pytest.fixture(scope="module")
def policy() -> CausalLMPolicy:
    """An untrained policy that likes to close tags, so that turns end early and late."""
    torch.manual_seed(0)
    model = embedded_model(TOKENIZER)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(3.0)
    return CausalLMPolicy(model)


FAVOURED = {"<search>": 32.0, " Silver": 32.5, "</search>": 32.0, "<answer>": 29.0, "</answer>": 29.0}


def full_logprobs(policy: CausalLMPolicy, ids: tuple[int, ...], temperature: float) -> torch.Tensor:
    with torch.no_grad():
        logits = policy.model(torch.tensor([ids])).logits[0] / temperature
    return torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)


def favouring_tags(policy: CausalLMPolicy) -> CausalLMPolicy:
    bias = torch.zeros(TOKENIZER.vocab_size)
    for text, favour in FAVOURED.items():
        bias[TOKENIZER.encode(text)] = favour
    biased = CausalLMPolicy(policy.model)
    biased.logits = lambda hidden: 0.1 * policy.logits(hidden) + bias  # pyright: ignore
    return biased


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_log_probs_equal_those_of_one_pass_over_the_finished_sequence(policy, temperature) -> None:
    # The strongest check of the cache: a wrong position, mask or row anywhere would show in some log-prob.
    biased = favouring_tags(policy)
    engine = HFEngine(biased, TOKENIZER, seed=1)
    questions = [q for q in WORLD.questions("test")[:30] for _ in range(2)]
    retriever = sources.open_retriever("bm25", WORLD.corpus)
    trajectories = play(
        questions, engine=engine, tokenizer=TOKENIZER, retriever=retriever, rules=RULES, temperature=temperature
    )
    assert sum(t.searches for t in trajectories) > (2 if temperature else -1)
    batch = collate(trajectories, range(len(trajectories)))
    scores = biased(batch.ids, batch.lengths, batch.mask, temperature or 1.0)
    assert (scores.logprobs - batch.old_logprobs).abs().max() < 1e-4


def test_nothing_is_read_twice(policy) -> None:
    engine = HFEngine(favouring_tags(policy), TOKENIZER, seed=2)
    retriever = sources.open_retriever("bm25", WORLD.corpus)
    questions = WORLD.questions("test")[:16]
    trajectories = play(questions, engine=engine, tokenizer=TOKENIZER, retriever=retriever, rules=RULES)
    assert max(len(t.turns) for t in trajectories) > 2
    # The last id of each sequence is never read: nothing is sampled after it.
    unread = [t.turns[-1].policy[1] == len(t.ids) for t in trajectories]
    assert all(unread)
    assert engine.tokens_read == sum(len(t.ids) - 1 for t in trajectories)


def test_a_prompt_that_several_share_is_read_once(policy) -> None:
    engine = HFEngine(policy, TOKENIZER)
    prompt = TOKENIZER.encode("Question: Who directed the film Silver Harbor?")
    samples = engine.sample([Request(i, prompt, 1) for i in range(5)], temperature=1.0)
    assert engine.tokens_read == len(prompt)
    assert all(len(sample.ids) == 1 for sample in samples)


def test_greedy_takes_the_most_likely_id(policy) -> None:
    engine = HFEngine(policy, TOKENIZER)
    ids = TOKENIZER.encode("Question: Who wrote the book Songs of Snow?")
    (sample,) = engine.sample([Request(0, ids, 8)], temperature=0.0)
    for token in sample.ids:
        with torch.no_grad():
            assert policy.model(torch.tensor([ids])).logits[0, -1].argmax() == token
        ids = [*ids, token]


def test_samples_follow_the_policy(policy) -> None:
    engine = HFEngine(policy, TOKENIZER, seed=0)
    ids = TOKENIZER.encode("Question:")
    drawn = [s.ids[0] for s in engine.sample([Request(i, ids, 1) for i in range(4000)], temperature=1.0)]
    with torch.no_grad():
        probabilities = policy.model(torch.tensor([ids])).logits[0, -1].softmax(-1)
    counts = torch.bincount(torch.tensor(drawn), minlength=TOKENIZER.vocab_size) / len(drawn)
    # Total variation of 4,000 draws from 750 ids is 0.17 on average for the uniform distribution.
    assert 0.5 * (counts - probabilities).abs().sum() < 0.2


@given(st.lists(st.integers(1, 12), min_size=2, max_size=9), st.integers(0, 100))
@settings(max_examples=15)
def test_rows_of_any_length_keep_their_own_cache(policy, limits, seed) -> None:
    # Turns end at different times, rows are parked and joined again; each must go on from its own past.
    engine = HFEngine(policy, TOKENIZER, seed=seed)
    ids = {i: TOKENIZER.encode("Question:" + " Silver" * i) for i in range(len(limits))}
    for turn in range(3):
        requests = [Request(i, ids[i], limits[(i + turn) % len(limits)]) for i in sorted(ids, reverse=bool(turn % 2))]
        for request, sample in zip(requests, engine.sample(requests, temperature=1.0), strict=True):
            start = len(request.ids)
            whole = (*request.ids, *sample.ids)
            expected = full_logprobs(policy, whole, 1.0)[start - 1 :]
            assert torch.allclose(torch.tensor(sample.logprobs), expected, atol=1e-4)
            ids[request.key] = [*whole, *TOKENIZER.encode(" found" * (request.key % 3))]  # pyright: ignore
        if len(ids) > 2:
            del ids[min(ids)]  # a sequence that is left out is forgotten


def test_misuse_is_refused(policy) -> None:
    engine = HFEngine(policy, TOKENIZER)
    assert engine.sample([], temperature=1.0) == []
    with pytest.raises(ValueError, match="less than one token"):
        engine.sample([Request(0, [1], 0)], temperature=1.0)
    with pytest.raises(ValueError, match="temperature"):
        engine.sample([Request(0, [1], 1)], temperature=-1.0)
    with pytest.raises(ValueError, match="same key"):
        engine.sample([Request(0, [1], 1), Request(0, [2], 1)], temperature=1.0)
    (sample,) = engine.sample([Request(0, [1], 1)], temperature=1.0)
    with pytest.raises(ValueError, match="not both"):
        engine.sample([Request(0, [1, *sample.ids], 1), Request(1, [2], 1)], temperature=1.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_that_are_no_token_are_not_drawn(policy, temperature) -> None:
    padded = CausalLMPolicy(policy.model)
    extra = torch.full((1, 64), 50.0)  # more likely by far than any token
    padded.logits = lambda hidden: torch.cat([policy.logits(hidden), extra.expand(len(hidden), -1)], 1)  # pyright: ignore
    (sample,) = HFEngine(padded, TOKENIZER).sample([Request("a", TOKENIZER.encode("Question:"), 30)], temperature)
    assert max(sample.ids) < TOKENIZER.vocab_size
    (plain,) = HFEngine(policy, TOKENIZER).sample([Request("a", TOKENIZER.encode("Question:"), 30)], temperature)
    assert sample == plain
