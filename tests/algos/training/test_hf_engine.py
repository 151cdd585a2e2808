"""HFEngine: samples what the policy says, reads nothing twice, and mixes up no two sequences, however they come."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM

from algos.training.collate import collate
from algos.training.engines import Request, Sample
from algos.training.engines.hf import HFEngine
from algos.training.policy import CausalLMPolicy
from algos.training.rollout import play
from experiments.warm_start import embedded_model
from search_gym import Rules, World, sources, tokenizers
from search_gym.actions import TurnReader

TOKENIZER = tokenizers.embedded()
WORLD = World(0)
RULES = Rules(prompt="brief", max_searches=2, max_turn_tokens=12, max_observation_tokens=60, max_context_tokens=300)
FAVOURED = {"<search>": 32.0, " Silver": 32.5, "</search>": 32.0, "<answer>": 29.0, "</answer>": 29.0}
QUESTION = TOKENIZER.encode("Question: Who wrote the book Songs of Snow?")


@pytest.fixture(scope="module")
def policy() -> CausalLMPolicy:
    """An untrained policy with opinions of its own."""
    return made(0)


@pytest.fixture(scope="module")
def biased(policy: CausalLMPolicy) -> CausalLMPolicy:
    """One that likes to close tags, so that turns end early and late."""
    bias = torch.zeros(TOKENIZER.vocab_size)
    for text, favour in FAVOURED.items():
        bias[TOKENIZER.encode(text)] = favour
    favouring = CausalLMPolicy(policy.model)
    favouring.logits = lambda hidden: 0.1 * policy.logits(hidden) + bias  # pyright: ignore
    return favouring


def made(seed: int) -> CausalLMPolicy:
    torch.manual_seed(seed)
    model = embedded_model(TOKENIZER)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(3.0)
    return CausalLMPolicy(model)


def full_logits(policy: CausalLMPolicy, ids: Sequence[int]) -> torch.Tensor:
    """Of every next id, by one pass over all of them."""
    with torch.no_grad():
        tensor = torch.tensor([ids])
        return policy.logits(policy.hidden(tensor, torch.ones_like(tensor)))[0]


def full_logprobs(policy: CausalLMPolicy, ids: Sequence[int], temperature: float) -> torch.Tensor:
    logits = full_logits(policy, ids) / temperature
    return torch.log_softmax(logits[:-1], -1).gather(1, torch.tensor(ids[1:])[:, None]).squeeze(1)


def plain(policy: CausalLMPolicy, request: Request) -> Sample:
    """The greedy turn, everything read again for every id."""
    ids, reader, stopped = list(request.ids), TurnReader(TOKENIZER), None
    while stopped is None:
        ids.append(int(full_logits(policy, ids)[-1].argmax()))
        if reader.push(ids[-1]):
            stopped = "tag"
        elif ids[-1] in TOKENIZER.eos_ids:
            stopped = "eos"
        elif len(ids) == len(request.ids) + request.max_tokens:
            stopped = "length"
    start = len(request.ids)
    return Sample(request.key, ids[start:], full_logprobs(policy, ids, 1.0)[start - 1 :].tolist(), stopped)


def collect_all(engine: HFEngine, requests: Sequence[Request]) -> dict[Hashable, Sample]:
    engine.submit(requests)
    samples: dict[Hashable, Sample] = {}
    while ended := engine.collect():
        samples |= {sample.key: sample for sample in ended}
    return samples


def close(logprobs: Sequence[float], expected: Sequence[float] | torch.Tensor) -> bool:
    return torch.allclose(torch.tensor(logprobs), torch.as_tensor(expected), atol=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_log_probs_equal_those_of_one_pass_over_the_finished_sequence(biased, temperature) -> None:
    # A wrong position, mask or row of the cache anywhere would show in some log-prob.
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


@st.composite
def schedules(draw: st.DrawFn) -> list[tuple[str, list[int], int, float]]:
    """Steps of a play: what is done, with which sequences, at most so many tokens, at which temperature."""
    step = st.tuples(
        st.sampled_from(["submit", "submit", "submit", "collect", "collect", "forget"]),
        st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True),
        st.integers(1, 9),
        st.sampled_from([0.0, 0.0, 1.0, 0.7]),
    )
    return draw(st.lists(step, min_size=4, max_size=14))


class Play:
    """Follows a schedule with an engine, as far as the schedule makes sense, and keeps every turn with its request."""

    def __init__(self, engine: HFEngine) -> None:
        self.engine = engine
        self.ids: dict[int, list[int]] = {}
        self.asked: dict[Hashable, Request] = {}
        self.turns: list[tuple[Request, Sample]] = []

    def follow(self, schedule: Sequence[tuple[str, list[int], int, float]]) -> Play:
        for action, keys, limit, temperature in schedule:
            if action == "submit":
                new = [key for key in keys if key not in self.asked]
                # Half of the keys begin with the same ids, as the responses of a group do.
                ids = {key: self.ids.get(key, QUESTION + TOKENIZER.encode(" Silver" * (key // 2 * 3))) for key in new}
                requests = [Request(key, ids[key], limit + key % 3, temperature) for key in new]
                self.engine.submit(requests)
                self.asked |= {request.key: request for request in requests}
            elif action == "collect":
                self.take(self.engine.collect())
            else:
                self.engine.forget([*keys, "unknown"])
                for key in keys:
                    self.asked.pop(key, None)
                    self.ids.pop(key, None)
        while ended := self.engine.collect():
            self.take(ended)
        assert not self.asked
        return self

    def take(self, samples: Sequence[Sample]) -> None:
        assert bool(samples) == bool(self.asked)
        for sample in samples:
            request = self.asked.pop(sample.key)
            self.turns.append((request, sample))
            assert isinstance(request.key, int)
            self.ids[request.key] = [*request.ids, *sample.ids, *TOKENIZER.encode(" found" * (request.key % 4))]


@pytest.mark.slow
@given(schedules(), st.sampled_from([0.0, 0.125, 5.0]))
@settings(max_examples=30)
def test_every_turn_is_that_of_its_sequence_alone(biased, schedule, share) -> None:
    for request, sample in Play(HFEngine(biased, TOKENIZER, seed=3, ended_share=share)).follow(schedule).turns:
        whole = [*request.ids, *sample.ids]
        assert close(sample.logprobs, full_logprobs(biased, whole, request.temperature or 1.0)[len(request.ids) - 1 :])
        assert 1 <= len(sample.ids) <= request.max_tokens
        if request.temperature == 0:
            expected = plain(biased, request)
            assert (sample.ids, sample.stopped) == (expected.ids, expected.stopped)


@given(schedules(), st.integers(0, 100))
@settings(max_examples=10)
def test_the_same_calls_give_the_same_samples(biased, schedule, seed) -> None:
    first, again = (Play(HFEngine(biased, TOKENIZER, seed)).follow(schedule).turns for _ in range(2))
    assert first == again  # bit for bit, log-probs too


def test_nothing_is_read_twice(biased) -> None:
    engine = HFEngine(biased, TOKENIZER, seed=2)
    retriever = sources.open_retriever("bm25", WORLD.corpus)
    questions = WORLD.questions("test")[:16]
    trajectories = play(questions, engine=engine, tokenizer=TOKENIZER, retriever=retriever, rules=RULES)
    assert max(len(t.turns) for t in trajectories) > 2
    # The last id of each sequence is never read: nothing is sampled after it.
    assert all(t.turns[-1].policy[1] == len(t.ids) for t in trajectories)
    assert engine.tokens_read == sum(len(t.ids) - 1 for t in trajectories)


def test_a_prompt_that_several_share_is_read_once(policy) -> None:
    engine = HFEngine(policy, TOKENIZER)
    samples = collect_all(engine, [Request(i, QUESTION, 1) for i in range(5)])
    assert engine.tokens_read == len(QUESTION)
    assert all(len(sample.ids) == 1 for sample in samples.values())


def test_short_turns_come_back_before_long_ones(policy) -> None:
    engine = HFEngine(policy, TOKENIZER)
    engine.submit([Request(i, QUESTION, 2 if i < 2 else 30) for i in range(8)])
    assert {sample.key for sample in engine.collect()} == {0, 1}
    read = engine.tokens_read
    engine.submit([Request("joins", QUESTION, 1)])
    assert [sample.key for sample in engine.collect()] == ["joins"]
    assert engine.tokens_read - read <= len(QUESTION) + 6  # the six others were in the same pass, and went on
    assert collect_all(engine, []).keys() == set(range(2, 8))


def test_samples_follow_the_policy(policy) -> None:
    engine = HFEngine(policy, TOKENIZER, seed=0)
    samples = collect_all(engine, [Request(i, QUESTION[:1], 1) for i in range(4000)])
    drawn = torch.tensor([sample.ids[0] for sample in samples.values()])
    counts = torch.bincount(drawn, minlength=TOKENIZER.vocab_size) / len(drawn)
    probabilities = full_logits(policy, QUESTION[:1])[-1].softmax(-1)
    # Total variation of 4,000 draws from 750 ids is 0.17 on average for the uniform distribution.
    assert 0.5 * (counts - probabilities).abs().sum() < 0.2


def test_a_state_goes_on_exactly(policy) -> None:
    engine, other = (HFEngine(policy, TOKENIZER, seed) for seed in (0, 1))
    requests = [Request(i, QUESTION, 5) for i in range(4)]
    first = collect_all(engine, requests)
    engine.forget(range(4))
    state = engine.state_dict()
    second = collect_all(engine, requests)
    other.load_state_dict(state)
    assert collect_all(other, requests) == second != first


def test_greedy_sequences_alone_draw_no_random_numbers(policy) -> None:
    engine = HFEngine(policy, TOKENIZER)
    before = engine.state_dict()["generator"]
    collect_all(engine, [Request(0, QUESTION, 5, 0.0)])
    assert torch.equal(engine.state_dict()["generator"], before)


def test_misuse_is_refused(policy) -> None:
    engine = HFEngine(policy, TOKENIZER)
    engine.submit([])
    assert engine.collect() == []
    engine.submit([Request("a", [1], 1)])
    for same in ([Request("a", [1], 1)], [Request("b", [1], 1), Request("b", [1], 1)]):
        with pytest.raises(ValueError, match="is being sampled already"):
            engine.submit(same)
    (sample,) = engine.collect()
    for ids in ([2, *sample.ids], [1]):
        with pytest.raises(ValueError, match="'a' do not begin with those it had"):
            engine.submit([Request("c", [1], 1), Request("a", ids, 1)])
    assert engine.collect() == []  # none of the requests was taken
    engine.forget(["a"])
    engine.submit([Request("a", [2], 1)])
    assert len(engine.collect()) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "less than one token"),
        ({"temperature": -1.0}, "temperature of request 'a'"),
        ({"temperature": float("nan")}, "temperature of request 'a'"),
        ({"ids": []}, "'a' has no ids"),
    ],
    ids=["no-room", "negative", "nan", "no-ids"],
)
def test_requests_without_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Request(**{"key": "a", "ids": [1], "max_tokens": 1} | fields)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_that_are_no_token_are_not_drawn(policy, temperature) -> None:
    padded = CausalLMPolicy(policy.model)
    extra = torch.full((1, 64), 50.0)  # more likely by far than any token
    padded.logits = lambda hidden: torch.cat([policy.logits(hidden), extra.expand(len(hidden), -1)], 1)  # pyright: ignore
    requests = [Request("a", QUESTION, 30, temperature)]
    (sample,) = collect_all(HFEngine(padded, TOKENIZER), requests).values()
    assert max(sample.ids) < TOKENIZER.vocab_size
    assert collect_all(HFEngine(policy, TOKENIZER), requests) == {"a": sample}


def test_a_shared_policy_is_never_copied(policy) -> None:
    trained = copy.deepcopy(policy)
    engine = HFEngine(trained, TOKENIZER)
    requests = [Request("a", QUESTION, 8, 0.0)]
    before = collect_all(engine, requests)
    trained.model.load_state_dict(made(1).model.state_dict())

    def weights() -> Any:
        raise AssertionError("nothing has to be gathered for an engine that shares the parameters")

    engine.sync(weights)
    after = collect_all(engine, requests)
    assert after == collect_all(HFEngine(made(1), TOKENIZER), requests) != before


def test_a_copy_follows_what_is_synced(policy) -> None:
    trained, engine = made(1), HFEngine(copy.deepcopy(policy), TOKENIZER, shared=False)
    requests = [Request("a", QUESTION, 8, 0.0)]
    assert collect_all(engine, requests) == collect_all(HFEngine(policy, TOKENIZER), requests)
    # The head is tied to the embedding: parameters hold it once, and under one name.
    assert "lm_head.weight" not in dict(trained.model.named_parameters())
    engine.sync(trained.model.named_parameters)
    assert collect_all(engine, requests) == collect_all(HFEngine(trained, TOKENIZER), requests)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("model.norm.weight"), "missing: model.norm.weight"),
        (lambda w: w.update(strange=torch.zeros(1)), "'strange' is none of LlamaForCausalLM"),
        (lambda w: w.update({"model.norm.weight": torch.zeros(3)}), r"'model.norm.weight' has the shape \[3\]"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_weights_that_do_not_fit_are_named(policy, change, message) -> None:
    weights = dict(policy.model.state_dict())
    change(weights)
    with pytest.raises(ValueError, match=message):
        HFEngine(copy.deepcopy(policy), TOKENIZER, shared=False).sync(lambda: weights.items())


def test_the_policy_is_left_as_it_was(policy) -> None:
    trained = copy.deepcopy(policy).train()
    trained.model.config._attn_implementation = "eager"  # it would take the engine's masks for numbers to add
    (sample,) = collect_all(HFEngine(trained, TOKENIZER), [Request("a", QUESTION, 8, 0.0)]).values()
    assert sample.ids == plain(policy, Request("a", QUESTION, 8)).ids
    assert trained.training
    assert trained.model.config._attn_implementation == "eager"


def test_what_is_forgotten_holds_no_memory(policy) -> None:
    engine = HFEngine(policy, TOKENIZER)
    for key in range(20):
        collect_all(engine, [Request(key, QUESTION, 2), Request("kept", QUESTION, 2)])
        engine.forget([key, "kept"])
    assert engine._cache.shape == (0, 0)
    collect_all(engine, [Request("kept", QUESTION, 2)])
    for key in range(20):
        collect_all(engine, [Request(key, QUESTION, 2)])
        engine.forget([key])
    assert engine._cache.shape[0] == 2  # a row is used again


def test_half_precision(policy) -> None:
    half = CausalLMPolicy(copy.deepcopy(policy.model).to(torch.bfloat16))
    for request, sample in Play(HFEngine(half, TOKENIZER)).follow([("submit", list(range(6)), 8, 1.0)]).turns:
        expected = full_logprobs(half, [*request.ids, *sample.ids], 1.0)[len(request.ids) - 1 :]
        assert (torch.tensor(sample.logprobs) - expected).abs().max() < 0.2


def test_a_window_of_attention_is_refused() -> None:
    config = MistralConfig(
        vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=16,
    )  # fmt: skip
    with pytest.raises(ValueError, match="MistralForCausalLM: it has layers of sliding_attention"):
        HFEngine(CausalLMPolicy(MistralForCausalLM(config)), TOKENIZER)
