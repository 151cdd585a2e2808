"""What the environments share: the setting that episodes are played in, and the seat that plays them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, SupportsIndex, TypedDict

import numpy as np
from gymnasium import spaces

from search_gym import tokenizers
from search_gym.episode import Episode
from search_gym.prompts import PromptTemplate
from search_gym.questions import Question, QuestionSet
from search_gym.retrieval import Passage, Retriever
from search_gym.retrieval.strict import OnSearchError
from search_gym.rewards import Reward
from search_gym.rules import Rules
from search_gym.sources import open_questions, open_retriever

Observation = dict[str, Any]
Info = dict[str, Any]
TokenAction = SupportsIndex
TurnAction = Sequence[int] | np.ndarray
Order = Literal["shuffled", "sequential"]


class Arguments(TypedDict, total=False):
    """What every environment takes; `SearchQAEnv` says what each is."""

    questions: Any
    corpus: str | PathLike[str] | Sequence[Passage] | None
    retriever: str | PathLike[str] | Mapping[str, Any] | Retriever
    on_search_error: OnSearchError
    tokenizer: Any
    order: Order
    reward: str | Reward
    prompt: str | PromptTemplate
    max_searches: int
    top_k: int
    max_turns: int | None
    max_turn_tokens: int
    max_observation_tokens: int
    max_context_tokens: int
    search_cost: float
    invalid_cost: float
    render_mode: str | None


class Setting:
    """Questions and their order, a retriever, a tokenizer and the rules. The arguments are those of `SearchQAEnv`.

    Raises:
        ValueError: if an argument is none of those that there are, or of no use.
    """

    def __init__(
        self,
        *,
        questions: Any = "embedded",
        corpus: str | PathLike[str] | Sequence[Passage] | None = None,
        retriever: str | PathLike[str] | Mapping[str, Any] | Retriever = "bm25",
        on_search_error: OnSearchError = "tell",
        tokenizer: Any = "embedded",
        order: Order = "shuffled",
        **rules: Any,
    ) -> None:
        if order not in ("shuffled", "sequential"):
            raise ValueError(f"unknown order {order!r}; there are: shuffled, sequential")
        self.order = order
        self.rules = make_rules(rules)
        self.tokenizer = tokenizers.load(tokenizer)
        self.questions: QuestionSet = open_questions(questions)
        self.retriever = open_retriever(retriever, corpus, on_search_error=on_search_error)
        size, vocabulary = self.rules.max_context_tokens, self.tokenizer.vocab_size
        self.observation_space = spaces.Dict(
            {
                "tokens": spaces.Box(0, vocabulary - 1, (size,), np.int32),
                "length": spaces.Discrete(size + 1),
                "loss_mask": spaces.MultiBinary(size),
            }
        )
        self.token_space = spaces.Discrete(vocabulary)
        self.turn_space = spaces.Sequence(spaces.Discrete(vocabulary), stack=True)

    def order_of(self, rng: np.random.Generator) -> Iterator[Question]:
        """Questions without end, pass after pass."""
        while True:
            yield from self.questions.one_pass(rng if self.order == "shuffled" else None)


def make_rules(rules: Mapping[str, Any]) -> Rules:
    """Rules of the arguments that a user gave, with an error that lists those there are."""
    unknown = rules.keys() - Rules.__dataclass_fields__
    if unknown:
        own = ["questions", "corpus", "retriever", "on_search_error", "tokenizer", "order"]
        arguments = [*own, *Rules.__dataclass_fields__]
        raise ValueError(f"unknown argument {', '.join(sorted(unknown))}; there are: {', '.join(arguments)}")
    return Rules(**rules)


class Seat:
    """Plays one episode after another: an environment without its searching, which is done for many seats at once.

    Args:
        setting: that of the environment, shared by all of its seats.
        arrays: where the seat writes its tokens and its loss mask, as rows among those of others; its own unless given.
    """

    def __init__(self, setting: Setting, arrays: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        self.setting = setting
        size = setting.rules.max_context_tokens
        self._tokens, self._mask = arrays or (np.empty(size, np.int32), np.empty(size, np.int8))
        self.order: Iterator[Question] | None = None
        """The questions that the seat asks, without end. Those of a vector environment may share one."""
        self.episode: Episode | None = None
        self.unused_ids = 0
        """How many ids of the last turn came after its end, see `Episode.feed_turn`."""

    def begin(self, question: str | None) -> None:
        """Begin an episode: of the question with that id, or of the next one."""
        if question is not None:
            chosen = self.setting.questions.find(question)
        elif self.order is None:
            raise RuntimeError("a seat needs an order before its first episode")
        else:
            chosen = next(self.order)
        self.episode = Episode(chosen, self.setting.tokenizer, self.setting.rules)
        self._tokens.fill(self.setting.tokenizer.pad_id)
        self._mask.fill(0)
        self._written, self._rewarded = 0, 0.0
        self.unused_ids = 0

    def check_token(self, action: Any) -> None:
        """Raise the error that `feed_token` would, and take nothing."""
        self.playing().checked([action])

    def feed_token(self, action: Any) -> None:
        """Take one id."""
        self.playing().feed([action])

    def check_turn(self, action: Any) -> None:
        """Raise the error that `feed_turn` would, and take nothing."""
        self.playing().checked(_ids(action))

    def feed_turn(self, action: Any) -> None:
        """Take a whole turn."""
        ids = _ids(action)
        _, taken = self.playing().feed_turn(ids)
        self.unused_ids = len(ids) - taken

    def playing(self) -> Episode:
        """The episode, which must not be over."""
        if self.episode is None:
            raise RuntimeError("call reset() before step()")
        if self.episode.done:
            raise RuntimeError(f"the episode of question {self.episode.question.id!r} is over: call reset()")
        return self.episode

    def reward(self) -> float:
        """What was earned since the last call."""
        assert self.episode is not None
        earned, self._rewarded = self.episode.reward - self._rewarded, self.episode.reward
        return earned

    def write(self) -> int:
        """Bring the arrays of the observation up to date; the number of tokens in them."""
        assert self.episode is not None
        ids, mask, start, length = self.episode.ids, self.episode.mask, self._written, len(self.episode.ids)
        # Only what is new is written, so that a step costs the same at the end of a long episode as at its beginning.
        if length == start + 1:  # as a slice, a single number becomes an array first, which takes ten times as long
            self._tokens[start], self._mask[start] = ids[start], mask[start]
        else:
            self._tokens[start:length] = ids[start:]
            self._mask[start:length] = mask[start:]
        self._written = length
        return length

    def observation(self) -> Observation:
        """The observation, in arrays of its own."""
        length = self.write()
        return {"tokens": self._tokens.copy(), "length": np.int64(length), "loss_mask": self._mask.copy()}

    def info(self, *, turns: bool) -> Info:
        """What `SearchQAEnv` documents; with `turns`, `unused_ids` as well."""
        episode = self.episode
        assert episode is not None
        info: Info = {
            "question_id": episode.question.id,
            "searches": episode.searches,
            "failed_searches": episode.failed_searches,
            "invalid_actions": episode.invalid_actions,
            "cut_passages": episode.cut_passages,
        }
        if turns:
            info["unused_ids"] = self.unused_ids
        if episode.done:
            info |= {"score": episode.score, "em": episode.em, "f1": episode.f1}
        return info


Check = Callable[[Seat, Any], None]
Feed = Callable[[Seat, Any], None]


def _ids(action: Any) -> Sequence[int]:
    """The ids of a turn: a sequence of whole numbers, or an array of them with one axis."""
    if isinstance(action, np.ndarray):
        if action.ndim != 1 or not (np.issubdtype(action.dtype, np.integer) or action.size == 0):
            raise ValueError(f"a turn is a run of token ids, not an array of {action.dtype} with shape {action.shape}")
        return action.tolist()
    if isinstance(action, str | bytes) or not isinstance(action, Sequence):
        raise TypeError(
            f"a turn is a run of token ids, not {type(action).__name__}: for turns of text, wrap the environment in "
            "search_gym.wrappers.TextActions"
        )
    return action


def read_options(options: Mapping[str, Any] | None, known: Sequence[str]) -> dict[str, Any]:
    """The options of a reset; one that is not known is an error."""
    given = dict(options or {})
    unknown = sorted(given.keys() - set(known))
    if unknown:
        raise ValueError(f"reset() knows the options {', '.join(known)}; not {', '.join(map(str, unknown))}")
    return given
