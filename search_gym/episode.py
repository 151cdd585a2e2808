"""The rule book of one question, as a state machine that does no input or output.

Whoever drives an episode feeds it the ids that a policy sampled. It answers with events; a search among them is
carried out by the driver, however it likes, and its passages handed back. So one batched search serves every episode of
a step, and every driver plays by the same rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from search_gym import prompts, rewards
from search_gym.actions import ANSWER_CLOSE, TurnReader
from search_gym.prompts import PromptTemplate
from search_gym.questions import Question
from search_gym.retrieval import Hit
from search_gym.rewards import Outcome, Reward
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory, Turn, TurnKind

# Passages are cut so that this many tokens are left for an answer, as far as cutting passages can do it.
ANSWER_ROOM = 32


@dataclass(frozen=True)
class Search:
    """The policy asks for passages: hand them to `Episode.observe`."""

    query: str


@dataclass(frozen=True)
class Answer:
    """The policy answered: the episode is terminated and scored."""

    text: str


@dataclass(frozen=True)
class Invalid:
    """The turn held no action that can be read or carried out; a notice was inserted where a turn is left."""

    reason: str


@dataclass(frozen=True)
class Truncated:
    """A budget ran out before an answer."""

    budget: str
    """The one that ran out: "turns" or "context"."""


Event = Search | Answer | Invalid | Truncated


@dataclass(frozen=True)
class Rules:
    """What an episode allows, and how it is worded and rewarded.

    Raises:
        ValueError: if a budget is too small to play with, a cost is negative, or a name is unknown.
    """

    prompt: str | PromptTemplate = "search-r1"
    """A name in `search_gym.prompts.TEMPLATES`, or a template."""
    reward: str | Reward = "em"
    """What the end is worth: anything that `search_gym.rewards.make` takes, such as "f1" or "em+0.2*format"."""
    search_cost: float = 0.0
    """Subtracted from the reward for every search that is carried out."""
    invalid_cost: float = 0.0
    """Subtracted for every invalid turn: it cannot be read, or asks for a search when none is left."""
    max_searches: int = 4
    """A search past this number is answered by a notice."""
    top_k: int = 3
    """How many passages a search asks for."""
    max_turns: int | None = None
    """Turns in all; None: `max_searches` + 2, which leaves one for the answer and one for a mistake."""
    max_turn_tokens: int = 512
    """Sampled tokens in one turn; a turn that reaches it without an action is invalid."""
    max_observation_tokens: int = 512
    """Inserted tokens after one search; passages are cut to fit, their closing tag is kept."""
    max_context_tokens: int = 4096
    """Prompt, turns and observations together."""

    def __post_init__(self) -> None:
        least = {
            "max_searches": 0, "top_k": 1, "max_turns": 1, "max_turn_tokens": 1, "max_observation_tokens": 1,
            "max_context_tokens": 2,
        }  # fmt: skip
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name} must be at least {bound}, not {value}")
        for name in ("search_cost", "invalid_cost"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be a finite number and at least 0, not {getattr(self, name)}")
        prompts.get(self.prompt)
        rewards.make(self.reward)

    @property
    def turns(self) -> int:
        """`max_turns` with its default filled in."""
        return self.max_searches + 2 if self.max_turns is None else self.max_turns


class Episode:
    """One question from its prompt to its end.

    A turn ends at `</search>`, at `</answer>`, at an end-of-sequence id, or at its token limit. `</answer>` terminates
    the episode and is scored; a budget that runs out truncates it. A turn without a readable action is answered by a
    notice and counts. Every id is kept as it was sampled: nothing is decoded and encoded again. What is inserted is
    encoded without control tokens and never read as an action.

    Args:
        question: what is asked.
        tokenizer: that of the policy which samples the ids.
        rules: budgets, wording and reward.

    Raises:
        ValueError: if the prompt leaves no room for a single token in the context, or if the tags around passages alone
            take more than an observation may.
    """

    def __init__(self, question: Question, tokenizer: Tokenizer, rules: Rules | None = None) -> None:
        self.question = question
        self.tokenizer = tokenizer
        self.rules = rules = rules or Rules()
        self._template = prompts.get(rules.prompt)
        self._reward = rewards.make(rules.reward)
        self.ids: list[int] = self._template.encode(question.text, tokenizer)
        """All ids so far: prompt, sampled and inserted ones."""
        self.prompt_length = len(self.ids)
        if self.prompt_length >= rules.max_context_tokens:
            raise ValueError(
                f"the prompt of question {question.id!r} has {self.prompt_length} tokens, the context "
                f"{rules.max_context_tokens}: raise max_context_tokens or shorten the prompt"
            )
        frame = len(tokenizer.encode(self._template.opening + self._template.closing))
        if frame >= rules.max_observation_tokens:
            raise ValueError(
                f"max_observation_tokens = {rules.max_observation_tokens} leaves no room for a passage: the tags "
                f"around it take {frame}"
            )
        self.mask: list[int] = [0] * self.prompt_length
        """1 where the policy sampled the id, else 0."""
        self.logprobs: list[float] = [0.0] * self.prompt_length
        self.turns: list[Turn] = []
        self.searches = 0
        self.pending: Search | None = None
        """The search whose passages are awaited."""
        self.answer: str | None = None
        self.terminated = False
        self.truncated = ""
        """The budget that ran out, or ""."""
        self.reward = 0.0
        """All so far: minus the costs of searches and invalid turns; at the end, plus `score`."""
        self.score = 0.0
        """What `Rules.reward` gives for the whole episode; 0.0 until its end."""
        self.em = 0.0
        self.f1 = 0.0
        self._begin_turn()

    @property
    def done(self) -> bool:
        """Terminated or truncated."""
        return self.terminated or bool(self.truncated)

    @property
    def room(self) -> int:
        """How many more ids the current turn may hold; 0 where no id is expected."""
        if self.done or self.pending is not None:
            return 0
        used = len(self.ids) - self._turn_start
        return min(self.rules.max_turn_tokens - used, self.rules.max_context_tokens - len(self.ids))

    def feed(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> list[Event]:
        """Take the ids that the policy sampled, in order.

        Args:
            ids: one or more ids of the current turn.
            logprobs: the log-probability of each, where known.

        Returns:
            What the ids led to; empty while the turn goes on.

        Raises:
            ValueError: if the episode is over, a search is pending, or ids go on past the end of the turn.
        """
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} ids came with {len(logprobs)} log-probabilities")
        events: list[Event] = []
        for position, token in enumerate(ids):
            if self.done:
                raise ValueError(
                    f"the episode of question {self.question.id!r} is over: it takes no id (at {position})"
                )
            if self.pending is not None or events:
                raise ValueError(f"ids go on past the end of the turn, from position {position} of {len(ids)}")
            self.ids.append(int(token))
            self.mask.append(1)
            self.logprobs.append(0.0 if logprobs is None else float(logprobs[position]))
            if self._reader.push(int(token)):
                events = self._act()
            elif token in self.tokenizer.eos_ids:
                events = self._refuse("the turn ended without an action", self._template.unreadable)
            elif self.room <= 0:
                events = self._out_of_room()
        return events

    def observe(self, hits: Sequence[Hit]) -> list[Event]:
        """Insert the passages that the pending search found, best first.

        Returns:
            Empty, or the truncation where the context cannot hold even an empty observation.
        """
        if self.pending is None:
            raise ValueError("no search is pending: there is nothing to observe")
        self.pending = None
        start, shown = len(self.ids), list(hits)[: self.rules.top_k]
        left = self.rules.max_context_tokens - len(self.ids) - 1
        budget = min(self.rules.max_observation_tokens, left - ANSWER_ROOM)
        inserted, cut = self._template.observation(shown, self.tokenizer, budget)
        if len(inserted) > left:
            return [self._truncate("context")]
        self._insert(inserted)
        search = self.turns[-1]
        self.turns[-1] = Turn(
            search.kind, search.text, search.argument, search.policy, (start, len(self.ids)),
            tuple(hit.id for hit in shown), cut,
        )  # fmt: skip
        self._begin_turn()
        return []

    def trajectory(self, **extra: object) -> Trajectory:
        """The record of the episode; `extra` goes into it as it is."""
        return Trajectory(
            question_id=self.question.id,
            question=self.question.text,
            golds=self.question.golds,
            ids=tuple(self.ids),
            mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            prompt_length=self.prompt_length,
            turns=tuple(self.turns),
            answer=self.answer,
            reward=self.reward,
            em=self.em,
            f1=self.f1,
            terminated=self.terminated,
            truncated=self.truncated,
            text=self.text,
            extra=dict(extra),
        )

    @property
    def text(self) -> str:
        """The whole dialogue as text, for people."""
        return self.tokenizer.decode(self.ids)

    def _begin_turn(self) -> None:
        self._reader = TurnReader(self.tokenizer)
        self._turn_start = len(self.ids)

    def _act(self) -> list[Event]:
        """The turn has a closing tag: carry out what it closes."""
        body, closed_by = self._reader.body(), self._reader.closed_by
        if body is None:
            return self._refuse(f"{closed_by} closes nothing that can be read", self._template.unreadable)
        if closed_by == ANSWER_CLOSE:
            return [self._finish(body)]
        if not body:
            return self._refuse("the query is empty", self._template.unreadable)
        if self.searches >= self.rules.max_searches:
            return self._refuse("no search is left", self._template.no_search_left)
        if len(self.turns) + 1 >= self.rules.turns:  # nobody would read the passages
            self._end_turn("unfinished", body)
            return [self._truncate("turns")]
        self.searches += 1
        self.reward -= self.rules.search_cost
        self._end_turn("search", body)
        self.pending = Search(body)
        return [self.pending]

    def _finish(self, answer: str) -> Answer:
        self._end_turn("answer", answer)
        self.answer, self.terminated = answer, True
        golds = self.question.golds
        self.em, self.f1 = rewards.exact_match(answer, golds), rewards.token_f1(answer, golds)
        self._settle()
        return Answer(answer)

    def _refuse(self, reason: str, notice: str) -> list[Event]:
        """Answer an invalid turn by a notice, where a turn is left in which it can be read."""
        self._end_turn("invalid", reason)
        event = Invalid(reason)
        self.reward -= self.rules.invalid_cost
        if len(self.turns) >= self.rules.turns:
            return [event, self._truncate("turns")]
        start, inserted = len(self.ids), self.tokenizer.encode(notice)
        if start + len(inserted) >= self.rules.max_context_tokens:
            return [event, self._truncate("context")]
        self._insert(inserted)
        self.turns[-1] = Turn("invalid", self.turns[-1].text, reason, self.turns[-1].policy, (start, len(self.ids)))
        self._begin_turn()
        return [event]

    def _out_of_room(self) -> list[Event]:
        """The turn may not go on, and holds no action yet."""
        if len(self.ids) >= self.rules.max_context_tokens:
            self._end_turn("unfinished", "the context is full")
            return [self._truncate("context")]
        if len(self.turns) + 1 >= self.rules.turns:
            self._end_turn("unfinished", "the last turn is full")
            return [self._truncate("turns")]
        return self._refuse("the turn is too long", self._template.unreadable)

    def _truncate(self, budget: str) -> Truncated:
        self.truncated = budget
        self._settle()
        return Truncated(budget)

    def _settle(self) -> None:
        """Reward the whole episode, which is over."""
        outcome = Outcome(self.answer, self.question.golds, tuple(turn.text for turn in self.turns))
        self.score = rewards.evaluate(self._reward, outcome, self.question.id)
        self.reward += self.score

    def _end_turn(self, kind: TurnKind, argument: str) -> None:
        span, end = (self._turn_start, len(self.ids)), len(self.ids)
        self.turns.append(Turn(kind, self._reader.text, argument, span, (end, end)))

    def _insert(self, ids: list[int]) -> None:
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
