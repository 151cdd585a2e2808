"""The dialogue of an episode for people's eyes: what the policy wrote, what was brought, what was said told apart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from search_gym.episode import Episode

MODES = ("ansi", "human")
Kind = Literal["prompt", "policy", "passages", "notice", "end"]

# Select Graphic Rendition of ECMA-48: dim, bold, cyan, yellow, reverse.
_STYLES: dict[Kind, str] = {"prompt": "2", "policy": "1", "passages": "36", "notice": "33", "end": "7"}
# What a terminal would obey, were it printed as it is: a passage could clear the screen. Line breaks and tabs may stay.
_VISIBLE = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)} | {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def checked(render_mode: str | None) -> str | None:
    """The render mode, if there is one like it."""
    if render_mode not in (None, *MODES):
        raise ValueError(f"unknown render_mode {render_mode!r}; there are: {', '.join(MODES)}")
    return render_mode


def segments(episode: Episode, start: int = 0) -> Iterator[tuple[Kind, str]]:
    """The dialogue in pieces, each with what it is, from the id at `start` on."""
    for kind, (begin, end) in _spans(episode):
        if end > max(begin, start):
            yield kind, episode.tokenizer.decode(episode.ids[max(begin, start) : end])


def ending(episode: Episode) -> str:
    """One line on how the episode ended; empty while it goes on."""
    if not episode.done:
        return ""
    how = "answered" if episode.terminated else f"truncated: {episode.truncated} used up"
    return f"{how}, reward {episode.reward:g}, exact match {episode.em:g}, F1 {episode.f1:.2f}"


def dialogue(episode: Episode) -> str:
    """The whole dialogue so far, in colours, and how it ended."""
    parts = [_styled(kind, text) for kind, text in segments(episode)]
    if episode.done:
        parts += ["\n", _styled("end", ending(episode))]
    return "".join(parts)


class Printer:
    """Prints a dialogue as it grows, each piece once."""

    def __init__(self) -> None:
        self._episode: Episode | None = None
        self._shown = 0

    def show(self, episode: Episode) -> None:
        """Print what is new since the last call."""
        if episode is not self._episode:
            print(end="" if self._episode is None else "\n")
            self._episode, self._shown = episode, 0
        for kind, text in segments(episode, self._shown):
            print(_styled(kind, text), end="", flush=True)
        self._shown = len(episode.ids)
        if episode.done:
            print("\n" + _styled("end", ending(episode)), flush=True)


def _spans(episode: Episode) -> Iterator[tuple[Kind, tuple[int, int]]]:
    yield "prompt", (0, episode.prompt_length)
    end = episode.prompt_length
    for turn in episode.turns:
        yield "policy", turn.policy
        yield "notice" if turn.kind == "invalid" else "passages", turn.inserted
        end = max(turn.policy[1], turn.inserted[1])
    yield "policy", (end, len(episode.ids))  # the turn that has begun


def _styled(kind: Kind, text: str) -> str:
    return f"\x1b[{_STYLES[kind]}m{text.translate(_VISIBLE)}\x1b[0m"
