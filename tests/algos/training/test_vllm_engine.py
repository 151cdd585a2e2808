"""VLLMEngine, with a real vLLM: samples are turns of the policy, and follow it when it is trained."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from vllm_models import (
    EMBEDDED,
    QUESTION,
    SMALL_CACHE,
    TOKENIZER,
    everything,
    furthest,
    logprobs,
    needs_vllm,
    of_ranks,
    right_ends,
    trained,
)

from algos.training.collate import collate
from algos.training.engines import Request
from algos.training.engines.vllm import VLLMEngine
from algos.training.loading import load_policy, save_policy
from algos.training.lora import LoRAConfig, add_lora, weights
from algos.training.policy import CausalLMPolicy
from algos.training.rollout import play
from search_gym import Rules, World, sources
from search_gym.tokenizers import Tokenizer

pytestmark = needs_vllm

WORLD = World(0)
RULES = Rules(prompt="brief", max_searches=3, max_turn_tokens=40, max_observation_tokens=120, max_context_tokens=600)


@contextmanager
def opened(model: Path, tokenizer: Tokenizer = TOKENIZER, seed: int = 0) -> Iterator[VLLMEngine]:
    engine = VLLMEngine(
        str(model), tokenizer, seed=seed, dtype="float32", enforce_eager=True, kv_cache_memory_bytes=SMALL_CACHE
    )
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMEngine]:
    """Of a policy that was saved as a run saves it."""
    folder = tmp_path_factory.mktemp("policy")
    save_policy(load_policy(EMBEDDED), folder)
    with opened(folder) as engine:
        yield engine


@pytest.fixture
def policy(engine: VLLMEngine) -> CausalLMPolicy:
    """The policy of the engine, fresh for each test."""
    policy = load_policy(EMBEDDED)
    engine.sync(lambda: weights(policy))
    return policy


def asking(count: int, temperature: float = 1.0, max_tokens: int = 40) -> list[Request]:
    return [Request(n, QUESTION, max_tokens, temperature) for n in range(count)]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_log_probs_are_those_of_the_distribution_that_was_sampled_from(engine, policy, temperature) -> None:
    # M2
    samples = everything(engine, asking(20, temperature))
    assert furthest(policy, samples, QUESTION, temperature) < 1e-4
    assert right_ends(samples, 40)
    assert {sample.stopped for sample in samples} <= {"tag", "eos", "length"}
    assert furthest(policy, everything(engine, asking(20, 0.5)), QUESTION, 1.0) > 1e-2


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_episodes_have_the_log_probs_of_the_policy(engine, policy, temperature) -> None:
    questions = [question for question in WORLD.questions("test")[:16] for _ in range(2)]
    retriever = sources.open_retriever("bm25", WORLD.corpus)
    trajectories = play(
        questions, engine=engine, tokenizer=TOKENIZER, retriever=retriever, rules=RULES, temperature=temperature
    )
    assert sum(t.searches for t in trajectories) >= len(questions) / 2
    assert sum(t.em for t in trajectories) > 4
    batch = collate(trajectories, range(len(trajectories)))
    scores = policy(batch.ids, batch.lengths, batch.mask, temperature or 1.0)
    assert (scores.logprobs - batch.old_logprobs).abs().max() < 1e-3


@pytest.mark.parametrize("adapters", [0, 4], ids=["whole", "lora"])
@pytest.mark.parametrize("tied", [True, False], ids=["head-left-out", "head-given"])
def test_the_engine_follows_the_policy(engine, policy, adapters, tied) -> None:
    if adapters:
        add_lora(policy, LoRAConfig(rank=adapters))
    before = everything(engine, asking(20))
    trained(policy, before, QUESTION)
    assert furthest(policy, before, QUESTION, 1.0) > 1e-2
    engine.sync(lambda: ((name, value) for name, value in weights(policy) if not (tied and name == "lm_head.weight")))
    after = everything(engine, asking(20))
    assert furthest(policy, after, QUESTION, 1.0) < 1e-4


def test_engines_of_several_ranks_follow_their_policies(tmp_path) -> None:
    for before, after in of_ranks("vllm", tmp_path / "meeting"):
        assert before > 1e-2
        assert after < 1e-4


def test_weights_that_do_not_fit_are_refused(engine, policy) -> None:
    given = dict(weights(policy))
    without = {name: value for name, value in given.items() if name != "model.norm.weight"}
    with pytest.raises(ValueError, match=r"1 of the engine's weights .* such as model\.norm\.weight"):
        engine.sync(without.items)
    with pytest.raises(ValueError, match="unknown_to_it"):
        engine.sync({**given, "model.unknown_to_it.weight": torch.zeros(1)}.items)
    engine.sync(given.items)
    assert furthest(policy, everything(engine, asking(10)), QUESTION, 1.0) < 1e-4


def test_samples_follow_the_policy(engine, policy) -> None:
    prompt = TOKENIZER.encode("Question:")
    samples = everything(engine, [Request(n, prompt, 1, 1.5) for n in range(2000)])
    counts = torch.bincount(torch.tensor([s.ids[0] for s in samples]), minlength=TOKENIZER.vocab_size) / len(samples)
    every = range(TOKENIZER.vocab_size)
    expected = torch.stack([logprobs(policy, prompt, [token], 1.5)[0] for token in every]).exp()
    drawn = torch.multinomial(expected, 2000, replacement=True, generator=torch.Generator().manual_seed(0))
    noise = (torch.bincount(drawn, minlength=TOKENIZER.vocab_size) / 2000 - expected).abs().sum()
    assert (counts - expected).abs().sum() < 1.5 * noise


def test_the_same_seeds_give_the_same_samples(engine, policy) -> None:
    state = engine.state_dict()
    first = everything(engine, asking(12))
    other = everything(engine, asking(12))
    engine.load_state_dict(state)
    again = everything(engine, asking(12))
    assert [s.ids for s in first] == [s.ids for s in again] != [s.ids for s in other]
    assert len({tuple(s.ids) for s in first}) > 6


def test_more_is_asked_for_than_is_read_in_one_step(engine, policy) -> None:
    drawn = random.Random(0)
    prompts = [[drawn.randrange(50, 700) for _ in range(300)] for _ in range(30)]
    assert sum(map(len, prompts)) > 2 * 4096  # what vLLM reads at once
    samples = everything(engine, [Request(n, prompt, 3) for n, prompt in enumerate(prompts)])
    for sample, prompt in zip(samples[::6], prompts[::6], strict=True):
        assert furthest(policy, [sample], prompt, 1.0) < 1e-4


def test_what_is_forgotten_does_not_come_back(engine, policy) -> None:
    engine.submit(asking(6))
    engine.forget([1, 3, "nobody"])
    engine.submit([Request(3, QUESTION, 2)])  # another sequence under a key that is free again
    samples = []
    while some := engine.collect():
        samples += some
    assert sorted(sample.key for sample in samples) == [0, 2, 3, 4, 5]
    assert max(len(sample.ids) for sample in samples if sample.key == 3) <= 2
    assert engine.collect() == []


def test_a_collect_waits_for_a_share_of_the_sequences(engine, policy) -> None:
    engine.submit([Request(n, QUESTION, 1 + n) for n in range(32)])
    assert len(engine.collect()) >= 2
    engine.forget(range(32))


def test_requests_that_cannot_be_fulfilled_are_refused_as_a_whole(engine, policy) -> None:
    good, length = Request("good", QUESTION, 4), engine.max_model_len
    for bad, why in [
        (Request("long", QUESTION, length - len(QUESTION) + 1), rf"1 more than|end at {length}.*max_context_tokens"),
        (Request("cold", QUESTION, 4, 1e-3), "temperature of 0 or from 0.01 to 2.0, not 0.001"),
        (Request("good", QUESTION, 4), "of that key is being sampled"),
        (Request("stranger", [TOKENIZER.vocab_size], 4), "'stranger' has ids that are none of the [0-9]+ tokens"),
        (Request("below", [*QUESTION, -1], 4), "'below' has ids that are none of"),
    ]:
        with pytest.raises(ValueError, match=why):
            engine.submit([good, bad])
    assert engine.collect() == []
    assert everything(engine, [Request("whole", QUESTION, length - len(QUESTION))])[0].ids


def spelling() -> Tokenizer:
    """A tokenizer to which every byte is an id, so that a closing tag takes nine."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({character: n for n, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore
    backend.decoder = decoders.ByteLevel()  # pyright: ignore
    backend.add_special_tokens(["<|end|>"])
    return Tokenizer(backend, eos_ids=[256], name="bytes")


def memorised(ids: Sequence[int], vocabulary: int) -> LlamaForCausalLM:
    """A model that has learnt one text by heart."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer, text = torch.optim.AdamW(model.parameters(), lr=3e-3), torch.tensor([ids])
    losses = []
    for _ in range(150):
        losses.append(model(text, labels=text).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.05
    return model


def global_states() -> tuple[object, str, list[int]]:
    return random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()  # noqa: NPY002


def test_a_tag_that_takes_many_ids_ends_the_turn(tmp_path) -> None:
    tokenizer = spelling()
    prompt, turn = tokenizer.encode("Q: 3>2? "), tokenizer.encode("<think>x>y</think>\n<search>a > b</search>")
    model = memorised([*prompt, *turn, *tokenizer.encode(" and more")], 257)
    model.save_pretrained(tmp_path)
    before = global_states()
    with opened(tmp_path, tokenizer) as engine:
        assert global_states() == before  # vLLM seeds everything when it starts
        requests = [Request("whole", prompt, 100, 0.0), Request("cut", prompt, len(turn) - 1, 0.0)]
        whole, cut = everything(engine, [*requests, Request("long", [*prompt, *turn[:-3]], 100, 0.0)])[:2]
    assert (whole.ids, whole.stopped) == (turn, "tag")
    assert (cut.ids, cut.stopped) == (turn[:-1], "length")
    assert furthest(CausalLMPolicy(model), [whole, cut], prompt, 0.0) < 1e-3


def padded(stretch: float) -> LlamaForCausalLM:
    """The embedded policy with outputs past its tokens, which are as likely as tokens are."""
    plain = load_policy(EMBEDDED).model
    settings = plain.config.to_dict() | {"vocab_size": TOKENIZER.vocab_size + 64, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    state = dict(plain.state_dict())
    table = state["model.embed_tokens.weight"]
    state["model.embed_tokens.weight"] = state["lm_head.weight"] = torch.cat([table, stretch * table[200:264]])
    model.load_state_dict(state)
    return model


def test_outputs_that_are_no_token_are_not_sampled(tmp_path) -> None:
    model = padded(1.5)
    model.save_pretrained(tmp_path)
    with opened(tmp_path) as engine:
        greedy, *sampled = everything(engine, [Request("g", QUESTION, 40, 0.0), *asking(40, 2.0)])
        barred = engine._bias  # what makes this test one: such outputs were drawn
    assert len(barred) > 5
    assert min(barred) >= TOKENIZER.vocab_size
    assert right_ends([greedy, *sampled], 40)
    assert max(token for sample in [greedy, *sampled] for token in sample.ids) < TOKENIZER.vocab_size
    cut = CausalLMPolicy(model)
    cut.logits = lambda hidden: model.lm_head(hidden)[..., : TOKENIZER.vocab_size].float()  # pyright: ignore
    every = torch.tensor([*QUESTION, *greedy.ids])[None]
    best = cut.logits(cut.hidden(every, torch.ones_like(every)))[0, len(QUESTION) - 1 : -1].argmax(-1)
    assert best.tolist() == greedy.ids


def test_a_model_of_another_tokenizer_is_found_out(tmp_path) -> None:
    padded(1000.0).save_pretrained(tmp_path)
    with opened(tmp_path) as engine, pytest.raises(RuntimeError, match="give the tokenizer that belongs to the model"):
        everything(engine, asking(1, max_tokens=2))
