"""Chat templates render as transformers renders them, and prompts begin as they should."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf
from families import BEGIN, END, byte_level
from tokenizers import models
from tokenizers import pre_tokenizers as splitting

from search_gym import prompts, tokenizers
from search_gym.episode import Episode
from search_gym.questions import Question
from search_gym.rules import Rules
from search_gym.tokenizers import Tokenizer

CHATML = (
    "{% if tools %}never{% endif %}{% for message in messages %}{% if loop.first and message.role != 'system' %}"
    "<|im_start|>system\nYou help.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{- bos_token }}\n{%- if not date_string is defined %}\n"
    "    {%- set date_string = strftime_now('%Y') %}\n{%- endif %}"
    "{{- '<|start|>system\\n\\nToday: ' + date_string }}\n{%- for message in messages %}\n"
    "    {{- '<|start|>' + message['role'] + '\\n\\n' + message['content'] | trim + eos_token }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|start|>assistant\\n\\n' }}\n{%- endif %}\n"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{% continue %}{% endif %}"
    "{{ '<start_of_turn>' + message['role'] + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
SMOL = (
    "{% set ns = namespace(found=false) %}{% for message in messages %}{% set ns.found = true %}"
    "{% if message.role == 'user' %}{{ {'content': message.content, 'é': '<'} | tojson }}{% else %}"
    "{% generation %}{{ message.content }}{% endgeneration %}{% endif %}{% endfor %}{{ ns.found }}"
)


def save(folder: Path, *, bos: bool, template: Any, **config: Any) -> Path:
    byte_level(bos=bos).backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": BEGIN, "eos_token": END, "chat_template": template, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("template", [CHATML, LLAMA, GEMMA, SMOL])
def test_a_chat_is_rendered_as_transformers_does(tmp_path: Path, template: str, bos: bool) -> None:
    transformers = pytest.importorskip("transformers")
    folder = save(tmp_path, bos=bos, template=template)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    question = "Who is <b>Ö</b>?"
    message = prompts.TEMPLATES["chat"].prompt.replace("{question}", question)
    want = theirs.apply_chat_template(
        [{"role": "user", "content": message}], add_generation_prompt=True, tokenize=False
    )
    for tokenizer in (tokenizers.load(folder), tokenizers.load(theirs)):
        ids = Episode(Question("q", question, ("x",)), tokenizer, Rules(prompt="chat")).ids
        leading = BEGIN if bos and not want.startswith(BEGIN) else ""
        if template != SMOL:  # which escapes the question: that is not the text which was asked
            assert tokenizer.decode(ids) == leading + want
            assert ids.count(tokenizer.control_tokens[BEGIN]) == (leading + want).count(BEGIN) <= 1  # P5


def test_a_message_that_a_template_changes_is_still_put(tmp_path: Path) -> None:
    tokenizer = tokenizers.load(save(tmp_path, bos=False, template=SMOL))
    text = tokenizer.decode(Episode(Question("q", "Who?", ("x",)), tokenizer, Rules(prompt="chat")).ids)
    assert "Question: Who?" in text
    assert text.endswith('"é": "<"}True')


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    assert tokenizers.load(save(tmp_path, bos=False, template=named)).chat_template == CHATML
    (tmp_path / "chat_template.jinja").write_text(GEMMA)
    assert tokenizers.load(tmp_path).chat_template == GEMMA


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template: use another prompt"),
        ("{{ raise_exception('say please') }}", "refuses the prompt: say please"),
        ("{% if %}", "refuses the prompt: "),
        ("nothing", "loses the user's message, or repeats it"),
        ("{{ messages[0].content }}{{ messages[0].content }}", "loses the user's message, or repeats it"),
    ],
)
def test_a_template_that_does_not_work_says_why(tmp_path: Path, template: str | None, message: str) -> None:
    tokenizer = tokenizers.load(save(tmp_path, bos=False, template=template))
    with pytest.raises(ValueError, match=message):
        Episode(Question("q", "Who?", ("x",)), tokenizer, Rules(prompt="chat"))


def test_a_turn_ends_by_every_id_that_the_generation_settings_name(tmp_path: Path) -> None:
    save(tmp_path, bos=False, template=None, eos_token="</s>")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    tokenizer = tokenizers.load(tmp_path)
    assert (tokenizer.eos_id, tokenizer.eos_ids) == (1, {1, 2})
    assert tokenizer.pad_id == 1
    for end in (1, 2):
        episode = Episode(Question("q", "Who?", ("x",)), tokenizer, Rules(prompt="brief"))
        episode.feed([*tokenizer.encode("so"), end])
        assert episode.turns[0].argument == "the turn ended without an action"
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert tokenizers.load(tmp_path).eos_ids == {2}


def test_a_vocabulary_that_cannot_spell_the_tags_is_refused() -> None:
    words = ["<unk>", "</s>", "search", "answer", "think", *(f"##{c}" for c in "<>/")]
    model = models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    backend = hf.Tokenizer(model)
    backend.pre_tokenizer = splitting.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match=r"small cannot spell <think>: it reads '.*' instead"):
        Tokenizer(backend, eos_ids=[1], name="small")


def test_ids_past_a_gap_are_in_the_vocabulary() -> None:
    description = json.loads(byte_level().backend.to_str())
    description["model"]["vocab"]["far"] = 9000
    tokenizer = Tokenizer(hf.Tokenizer.from_str(json.dumps(description)), eos_ids=[1])
    assert tokenizer.vocab_size == 9001
    assert tokenizer.decode([9000]) == "far"
