"""The rule book of one question, as a state machine that does no input or output.

Whoever drives an episode feeds it the ids that a policy sampled. It answers with events; a search among them is
carried out by the driver, however it likes, and its passages handed back (`search_gym.searching` does it for many
episodes at once). So one batched search serves every episode of a step, and every driver plays by the same rules.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import SupportsIndex

from search_gym import prompts, rewards
from search_gym.actions import ANSWER_CLOSE, TurnReader
from search_gym.questions import Question
from search_gym.retrieval import Hit, SearchFailed
from search_gym.rewards import Outcome
from search_gym.rules import Answer, Event, Invalid, Rules, Search, Truncated
from search_gym.tokenizers import Tokenizer
from search_gym.trajectory import Trajectory, Turn, TurnKind

# Passages are cut so that this many tokens are left for an answer, as far as cutting passages can do it.
ANSWER_ROOM = 32


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
        frame = len(tokenizer.encode_template(self._template.opening + self._template.closing))
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
        self.failed_searches = 0
        """Searches that could not be carried out; they count as searches, too."""
        self.invalid_actions = 0
        self.cut_passages = 0
        """Observations whose passages were cut to fit."""
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
        return self._turn_limit - len(self.ids)

    def feed(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> list[Event]:
        """Take the ids that the policy sampled, in order.

        Args:
            ids: one or more ids of the current turn.
            logprobs: the log-probability of each, where known.

        Returns:
            What the ids led to; empty while the turn goes on.

        Raises:
            ValueError: if the episode is over, a search is pending, or an id is outside the vocabulary: none is taken
                then. And if ids go on past the end of the turn: those before it have been taken.
        """
        events, taken = self._take(ids, logprobs)
        if taken < len(ids):
            raise ValueError(f"ids go on past the end of the turn, from position {taken} of {len(ids)}")
        return events

    def feed_turn(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> tuple[list[Event], int]:
        """Take a whole turn of the policy: as `feed` does, but the turn is over when the ids are.

        Args:
            ids: the ids of the turn, perhaps none. A run without an action is an invalid turn.
            logprobs: the log-probability of each, where known.

        Returns:
            What the turn led to, at least one event; and how many of the ids were taken. Those after the end of the
            turn (what an engine sampled past `</search>`, or past the turn's limit) are no part of the episode.

        Raises:
            ValueError: if the episode is over, a search is pending, or an id is outside the vocabulary: none is taken.
        """
        events, taken = self._take(ids, logprobs)
        return events or self._refuse("the turn ended without an action", self._template.unreadable), taken

    def observe(self, found: Sequence[Hit] | SearchFailed) -> list[Event]:
        """Insert what the pending search found, best first, or the word that it failed.

        Returns:
            Empty, or the truncation where the context cannot hold even an empty observation.
        """
        if self.pending is None:
            raise ValueError("no search is pending: there is nothing to observe")
        self.pending = None
        failed = found.reason if isinstance(found, SearchFailed) else ""
        shown = [] if isinstance(found, SearchFailed) else list(found)[: self.rules.top_k]
        start = len(self.ids)
        left = self.rules.max_context_tokens - start - 1
        budget = min(self.rules.max_observation_tokens, left - ANSWER_ROOM)
        inserted, cut = self._template.observation(None if failed else shown, self.tokenizer, budget)
        self.failed_searches += bool(failed)
        fits = len(inserted) <= left
        if fits:
            self._insert(inserted)
            self.cut_passages += cut
        self.turns[-1] = replace(
            self.turns[-1],
            inserted=(start, len(self.ids)),
            hits=tuple(hit.id for hit in shown) if fits else (),
            cut=cut and fits,
            failed=failed,
        )
        if not fits:
            return [self._truncate("context")]
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

    def checked(self, ids: Sequence[SupportsIndex]) -> list[int]:
        """The ids as ints. ValueError: one is outside the vocabulary; TypeError: it is no whole number."""
        checked, size = list(map(operator.index, ids)), self.tokenizer.vocab_size
        if checked and not 0 <= min(checked) <= max(checked) < size:
            stranger = next(token for token in checked if not 0 <= token < size)
            raise ValueError(f"token {stranger} is outside the vocabulary of {size} ids")
        return checked

    def _take(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> tuple[list[Event], int]:
        """Take ids until one ends the turn; what that led to, and how many were taken."""
        if self.done:
            raise ValueError(f"the episode of question {self.question.id!r} is over: it takes no more ids")
        if self.pending is not None:
            raise ValueError("a search is pending: hand its passages to observe() before the next id")
        if logprobs is not None and len(logprobs) != len(ids):
            raise ValueError(f"{len(ids)} ids came with {len(logprobs)} log-probabilities")
        checked = self.checked(ids)
        given = [0.0] * len(checked) if logprobs is None else list(map(float, logprobs))
        if self._is_whole_turn(checked):
            self.ids += checked
            self.mask += [1] * len(checked)
            self.logprobs += given
            return self._act(), len(checked)
        for position, token in enumerate(checked):
            events = self._push(token, given[position])
            if events:
                return events, position + 1
        return [], len(checked)

    def _is_whole_turn(self, ids: list[int]) -> bool:
        """Whether the ids are a turn from its beginning to the tag that its last id completes; it is read then."""
        begins, fits = len(self.ids) == self._turn_start, 1 < len(ids) <= self.room
        return begins and fits and self.tokenizer.eos_ids.isdisjoint(ids) and self._reader.read_whole(ids)

    def _push(self, token: int, logprob: float) -> list[Event]:
        """Take one id; what it led to, where it ends the turn."""
        self.ids.append(token)
        self.mask.append(1)
        self.logprobs.append(logprob)
        if self._reader.push(token):
            return self._act()
        if token in self.tokenizer.eos_ids:
            return self._refuse("the turn ended without an action", self._template.unreadable)
        return self._out_of_room() if len(self.ids) >= self._turn_limit else []

    def _begin_turn(self) -> None:
        self._reader = TurnReader(self.tokenizer)
        self._turn_start = len(self.ids)
        self._turn_limit = min(self._turn_start + self.rules.max_turn_tokens, self.rules.max_context_tokens)

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
        self.invalid_actions += 1
        event = Invalid(reason)
        self.reward -= self.rules.invalid_cost
        if len(self.turns) >= self.rules.turns:
            return [event, self._truncate("turns")]
        start, inserted = len(self.ids), self.tokenizer.encode_template(notice)
        if start + len(inserted) >= self.rules.max_context_tokens:
            return [event, self._truncate("context")]
        self._insert(inserted)
        self.turns[-1] = replace(self.turns[-1], inserted=(start, len(self.ids)))
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
