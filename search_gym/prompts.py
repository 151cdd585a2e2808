"""Prompt templates as data: how a question is put, passages are shown, and mistakes are answered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from search_gym import chat
from search_gym.retrieval import Hit
from search_gym.tokenizers import Tokenizer

_SLOT = "{question}"
_FIELD = re.compile(r"\{(?:rank|title|text)\}")
# Stands for the question while a chat template is rendered: a private-use character occurs in no template.
_SENTINEL = "\ue0f1question\ue0f1"


@dataclass(frozen=True)
class PromptTemplate:
    """The words around an episode. All of them are the environment's: none is trained on.

    Raises:
        ValueError: if `prompt` does not hold {question} exactly once.
    """

    prompt: str
    """The instruction, with {question} where the question goes. Nothing else in it is replaced."""
    opening: str
    """What stands before the passages of a search."""
    closing: str
    """What stands after them; it stays whole when passages are cut."""
    passage: str = "Doc {rank}(Title: {title}) {text}"
    """One passage; each stands on a line of its own."""
    nothing_found: str = "No passages were found."
    """What stands between `opening` and `closing` where a search found nothing."""
    search_failed: str = "The search failed. Try again."
    """What stands there where a search could not be carried out."""
    unreadable: str = (
        "\n\nThis action could not be read. To search, write <search> query </search>. To answer, write <answer> "
        "answer </answer>.\n\n"
    )
    """The notice after a turn that holds no readable action."""
    no_search_left: str = "\n\nNo search is left. Give the answer now, between <answer> and </answer>.\n\n"
    """The notice after a search past the last one that the budget allows."""
    chat: bool = False
    """Whether `prompt` is a user's message, to be put into the tokenizer's chat template."""

    def __post_init__(self) -> None:
        if self.prompt.count(_SLOT) != 1:
            raise ValueError(f"a prompt template holds {_SLOT} exactly once, this one does not: {self.prompt!r}")

    def encode(self, question: str, tokenizer: Tokenizer) -> list[int]:
        """The ids of the prompt. Control tokens come from the template alone, never from the question."""
        text = self.prompt
        if self.chat:
            message = self.prompt.replace(_SLOT, _SENTINEL)
            text = chat.render(message, tokenizer).replace(_SENTINEL, _SLOT)
            if text.count(_SLOT) != 1:
                raise ValueError(f"the chat template of {tokenizer.name} loses the user's message, or repeats it")
        before, _, after = text.partition(_SLOT)
        return tokenizer.encode_prompt(before, question, after)

    def observation(self, hits: Sequence[Hit] | None, tokenizer: Tokenizer, budget: int) -> tuple[list[int], bool]:
        """The ids of what a search brought (None: it failed), and whether its passages were cut.

        Passages are cut at the end, between characters, until there are at most `budget` ids. The tags around them stay
        whole even where they alone are more than that.
        """
        passages = self.search_failed if hits is None else self._passages(hits)
        whole = tokenizer.encode_template(self.opening, passages, self.closing)
        if len(whole) <= budget:
            return whole, False
        least, closing = len(tokenizer.encode_template(self.opening)), tokenizer.encode_template(self.closing)
        body = tokenizer.encode_template(self.opening, passages)[: max(budget - len(closing), least)]
        while len(body) > least and tokenizer.decode(body).endswith("\ufffd"):
            body.pop()  # the cut went through a character
        return body + closing, True

    def _passages(self, hits: Sequence[Hit]) -> str:
        lines = []
        for rank, hit in enumerate(hits, start=1):
            values = {"{rank}": str(rank), "{title}": hit.title, "{text}": hit.text}
            # In one pass, for a title may hold "{text}" itself.
            lines.append(_FIELD.sub(lambda field, values=values: values[field[0]], self.passage))
        return "\n".join(lines) if lines else self.nothing_found


_INSTRUCTION = """Find the answer to a question by searching. First think, between <think> and </think>, about what \
you need to know. To search, write <search> query </search>: the passages that are found are given to you between \
{opening} and {closing}. Think again after each search, and search as many times as you need. When you know enough, \
write the answer between <answer> and </answer>, short and without an explanation, for example <answer> Oslo </answer>.
"""
_SEARCH_R1 = _INSTRUCTION.format(opening="<information>", closing="</information>")
_SAPO = _INSTRUCTION.format(opening="<documents>", closing="</documents>")
_INFORMATION = ("\n\n<information>", "</information>\n\n")

# Worked dialogues show a base model, or one too small to follow an instruction, what to write. Three things matter to
# such a model. The dialogues are plain text: within a chat it does not go on in their manner. Turns are parted by one
# line break and dialogues by two, or it takes the end of the passages for the end of the dialogue and asks a question
# of its own. And the last answer is a name, for a final "yes" would be repeated for every question.
_FEW_SHOT = """Answer each question. Search first: write <search> query </search>, and passages are shown between \
<information> and </information>. Then write <answer> answer </answer>, in a few words.

Question: Which river flows through the city where Ludwig van Beethoven was born?
<search> Ludwig van Beethoven birthplace </search>
<information>Doc 1(Title: Ludwig van Beethoven) Ludwig van Beethoven was a composer and pianist. He was born in Bonn \
in 1770.
Doc 2(Title: Beethoven House) The Beethoven House is a museum.</information>
<search> Bonn river </search>
<information>Doc 1(Title: Bonn) Bonn is a city in Germany. It lies on the banks of the Rhine.
Doc 2(Title: Bonn Minster) Bonn Minster is a church.</information>
<answer> the Rhine </answer>

Question: Who wrote the novel about Victor Frankenstein?
<search> Victor Frankenstein novel author </search>
<information>Doc 1(Title: Frankenstein) Frankenstein is a novel of 1818 by the English author Mary Shelley.
Doc 2(Title: Victor Frankenstein) Victor Frankenstein is a scientist.</information>
<answer> Mary Shelley </answer>

"""

TEMPLATES: dict[str, PromptTemplate] = {
    # The tags and the passage style of Search-R1 (arXiv 2503.09516).
    "search-r1": PromptTemplate(f"{_SEARCH_R1}Question: {_SLOT}\n", *_INFORMATION),
    # The tags of SAPO (arXiv 2603.10069).
    "sapo": PromptTemplate(f"{_SAPO}Question: {_SLOT}\n", "\n\n<documents>", "</documents>\n\n"),
    # The same instruction as a user's message, for models tuned to follow instructions.
    "chat": PromptTemplate(f"{_SEARCH_R1}Question: {_SLOT}", *_INFORMATION, chat=True),
    # For policies that have learned the format already and need no telling.
    "brief": PromptTemplate(
        f"Question: {_SLOT}\n\n",
        "<information>",
        "</information>",
        unreadable=" This could not be read. ",
        no_search_left=" No search is left. ",
    ),
    # For models that were tuned little or not at all: they go on with what they see.
    "few-shot": PromptTemplate(
        f"{_FEW_SHOT}Question: {_SLOT}\n",
        "\n<information>",
        "</information>\n",
        unreadable="\nThis could not be read. Write <search> query </search> or <answer> answer </answer>.\n",
        no_search_left="\nNo search is left. Write <answer> answer </answer>.\n",
    ),
}


def get(template: str | PromptTemplate) -> PromptTemplate:
    """A template by name, or the one given.

    Raises:
        ValueError: if no template has that name; the message lists those there are.
    """
    if isinstance(template, PromptTemplate):
        return template
    if template not in TEMPLATES:
        raise ValueError(f"unknown prompt {template!r}; there are: {', '.join(TEMPLATES)}; or give a PromptTemplate")
    return TEMPLATES[template]
