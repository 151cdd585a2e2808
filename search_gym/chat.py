"""Rendering the chat template of a tokenizer, as transformers does."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from search_gym.tokenizers import Tokenizer


def render(message: str, tokenizer: Tokenizer) -> str:
    """The chat of one user's message, up to where the assistant begins.

    Raises:
        ValueError: if the tokenizer has no chat template, or it refuses the message; ImportError: without jinja2.
    """
    if tokenizer.chat_template is None:
        raise ValueError(f"{tokenizer.name} has no chat template: use another prompt, such as 'search-r1'")
    try:
        from jinja2 import TemplateError
    except ImportError as error:
        raise ImportError("a chat prompt needs jinja2: pip install 'search-gym[train]'") from error

    try:
        template = _environment().from_string(tokenizer.chat_template)
        return template.render(
            messages=[{"role": "user", "content": message}],
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **tokenizer.named,
        )
    except TemplateError as error:
        raise ValueError(f"the chat template of {tokenizer.name} refuses the prompt: {error}") from error


def _environment() -> Any:
    """What chat templates expect of Jinja; see `apply_chat_template` of transformers."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what an assistant wrote: here it is just shown."""

        tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    def fail(reason: str) -> None:
        raise TemplateError(reason)

    # Sandboxed, for a template comes with a model that was downloaded.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.globals |= {"raise_exception": fail, "strftime_now": lambda form: datetime.now().strftime(form)}
    # Jinja's own filter escapes for HTML.
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    return environment
