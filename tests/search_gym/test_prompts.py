"""Templates: the question arrives whole, and chat templates are rendered as the model's makers meant."""

from __future__ import annotations

import pytest
import tokenizers as hf
from hypothesis import given
from hypothesis import strategies as st

from search_gym import Hit, tokenizers
from search_gym.prompts import TEMPLATES, PromptTemplate, get
from search_gym.tokenizers import Tokenizer

EMBEDDED = tokenizers.embedded()
CHATML = (
    "{% for message in messages %}{{ '<|end|>' + message['role'] + '\n' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
)
PLAIN = [name for name, template in TEMPLATES.items() if not template.chat]
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def chatty(template: str | None) -> Tokenizer:
    backend = hf.Tokenizer.from_str(EMBEDDED.backend.to_str())
    return Tokenizer(backend, eos_ids=[EMBEDDED.eos_id], chat_template=template, name="chatty")


@given(st.sampled_from(PLAIN), TEXT)
def test_the_question_arrives_whole_and_inert(name: str, question: str) -> None:
    for text in (question, f"{question}<|end|>{question}"):
        ids = TEMPLATES[name].encode(text, EMBEDDED)
        assert EMBEDDED.decode(ids) == TEMPLATES[name].prompt.replace("{question}", text)
        assert EMBEDDED.eos_id not in ids


@given(TEXT)
def test_a_chat_prompt_is_a_user_s_message(question: str) -> None:
    ids = TEMPLATES["chat"].encode(question, chatty(CHATML))
    content = TEMPLATES["chat"].prompt.replace("{question}", question)
    assert EMBEDDED.decode(ids) == f"<|end|>user\n{content}<|end|>assistant\n"
    assert ids.count(EMBEDDED.eos_id) == 2


def test_the_chat_template_is_rendered_as_transformers_renders_it() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=hf.Tokenizer.from_str(EMBEDDED.backend.to_str()), eos_token="<|end|>"
    )
    tokenizer.chat_template = CHATML
    message = TEMPLATES["chat"].prompt.replace("{question}", "Who?")
    expected = tokenizer.apply_chat_template(
        [{"role": "user", "content": message}], add_generation_prompt=True, return_dict=False
    )
    assert TEMPLATES["chat"].encode("Who?", tokenizers.load(tokenizer)) == expected


def test_a_chat_prompt_needs_a_template_that_keeps_the_message() -> None:
    with pytest.raises(ValueError, match="has no chat template"):
        TEMPLATES["chat"].encode("Who?", chatty(None))
    with pytest.raises(ValueError, match="loses the user's message"):
        TEMPLATES["chat"].encode("Who?", chatty("{{ 'nothing' }}"))
    with pytest.raises(ValueError, match="refuses the prompt: no system"):
        TEMPLATES["chat"].encode("Who?", chatty("{{ raise_exception('no system') }}"))


def test_passages_are_shown_in_the_style_of_the_template() -> None:
    hits = [Hit("1", "A {text}", "{title} b", 2.0), Hit("2", "C", "d", 1.0)]
    shown = {name: EMBEDDED.decode(get(name).observation(hits, EMBEDDED, 999)[0]) for name in TEMPLATES}
    docs = "Doc 1(Title: A {text}) {title} b\nDoc 2(Title: C) d"
    assert shown["search-r1"] == f"\n\n<information>{docs}</information>\n\n"
    assert shown["sapo"] == f"\n\n<documents>{docs}</documents>\n\n"
    assert shown["brief"] == f"<information>{docs}</information>"


def test_names_and_objects() -> None:
    own = PromptTemplate("{question}", "<a>", "</a>")
    assert get(own) is own
    with pytest.raises(ValueError, match="unknown prompt 'x'; there are: search-r1, sapo, chat, brief"):
        get("x")
