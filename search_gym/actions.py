"""Reading the actions of one turn out of a growing stream of tokens."""

from __future__ import annotations

from search_gym.tokenizers import TextStream, Tokenizer

SEARCH_OPEN, SEARCH_CLOSE = "<search>", "</search>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
CLOSES = (SEARCH_CLOSE, ANSWER_CLOSE)
_LONGEST_TAG = max(map(len, CLOSES)) - 1
_OPENS = {SEARCH_CLOSE: SEARCH_OPEN, ANSWER_CLOSE: ANSWER_OPEN}


class TurnReader:
    """Follows one turn token by token, and says when a closing tag ends it.

    Tags are found in text, so it does not matter how tokens split them; a token that completes a tag and carries
    further characters (">\\n\\n") ends the turn just as well, and those characters belong to no action. Reading n
    tokens takes time linear in n.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._stream = TextStream(tokenizer)
        self._parts: list[str] = []
        self._tail = ""
        self._length = 0
        self._close_at = -1
        self.closed_by: str | None = None
        """The first closing tag of the turn, "</search>" or "</answer>"; None before it."""

    @property
    def text(self) -> str:
        """The text of the turn so far."""
        return "".join(self._parts) + self._stream.rest()

    def push(self, token: int) -> bool:
        """Read one more token. True as soon as a closing tag is complete."""
        new = self._stream.push(token)
        window = self._tail + new  # a tag that is not complete yet has its beginning in the tail
        self._parts.append(new)
        self._length += len(new)
        self._tail = window[-_LONGEST_TAG:]
        if ">" in new and self.closed_by is None:  # the last character of every tag
            found = _first_close(window)
            if found:
                self._close_at, self.closed_by = self._length - len(window) + found[0], found[1]
        return self.closed_by is not None

    def read_whole(self, ids: list[int]) -> bool:
        """Read a turn at once where its last id closes it, several times as fast as one by one, and to the same end.

        Args:
            ids: the ids of the turn from its beginning.

        Returns:
            Whether that was so. If not, nothing was read: push them.
        """
        text = self._stream.tokenizer.decode(ids)
        if self._parts or "\ufffd" in text or ">" not in text:  # what is no text depends on how it is cut
            return False
        found = _first_close(text)
        if found is None or _first_close(self._stream.tokenizer.decode(ids[:-1])):
            return False
        self._close_at, self.closed_by = found
        self._parts, self._length = [text], len(text)
        return True

    def body(self) -> str | None:
        """What stands between the closing tag and its opening one, stripped.

        None where the turn is not closed or cannot be read: no opening tag of that kind, or any tag of an action
        inside (`<search>a<search>b</search>`), for then it is not clear what was meant.
        """
        if self.closed_by is None:
            return None
        before = self.text[: self._close_at]
        _, opened, body = before.partition(_OPENS[self.closed_by])
        if not opened or any(tag in body for tag in (SEARCH_OPEN, ANSWER_OPEN)):
            return None
        return body.strip()


def action_span(text: str) -> tuple[int, int] | None:
    """Where the action of a turn stands in its text, from the opening tag to the end of the closing one.

    The closing tag is the turn's first; the opening one is the first of that kind before it, as in `TurnReader.body`,
    whether the action can be read or not. None where there are no such tags.
    """
    found = _first_close(text)
    if found is None:
        return None
    close_at, tag = found
    start = text.find(_OPENS[tag], 0, close_at)
    return None if start < 0 else (start, close_at + len(tag))


def _first_close(text: str) -> tuple[int, str] | None:
    """Where the first closing tag of a text begins, and which it is."""
    return min(((at, tag) for tag in CLOSES if (at := text.find(tag)) >= 0), default=None)
