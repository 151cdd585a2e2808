"""SearchQAEnv: one Episode behind gymnasium.Env, one token a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from search_gym import tokenizers
from search_gym.episode import Episode, Event, Rules, Search
from search_gym.prompts import PromptTemplate
from search_gym.questions import Question
from search_gym.retrieval import Passage, Retriever
from search_gym.rewards import Reward
from search_gym.sources import open_questions, open_retriever

Observation = dict[str, Any]


class SearchQAEnv(gymnasium.Env[Observation, np.int64]):
    """Answer a question by searching, one token at a time.

    ## Description
    The environment puts a question. A policy writes: `<search> query </search>` brings passages, `<answer> text
    </answer>` ends the episode and is compared with the accepted answers. The rules are those of
    `search_gym.episode.Episode`.

    ## Action space
    `Discrete(vocab_size)`: the id of the next token.

    ## Observation space
    A `Dict` of arrays of fixed shape:

    | key | space | meaning |
    | --- | --- | --- |
    | `tokens` | `Box(0, vocab_size - 1, (max_context_tokens,), int32)` | all ids so far: the prompt, what was sampled, what was inserted; then padding |
    | `length` | `Discrete(max_context_tokens + 1)` | how many of them there are |
    | `loss_mask` | `MultiBinary(max_context_tokens)` | 1 where the policy sampled the id; only these are to be trained on |

    ## Rewards
    0 at every step but the last. When `</answer>` is complete: `reward` of the answer, by default exact match (0 or 1).

    ## Starting state
    The prompt of the next question. `reset(seed=…)` shuffles the questions by that seed and begins with the first of
    them; `reset()` goes on to the next, and shuffles again after the last. `reset(options={"question": id})` asks the
    question with that id, and leaves the order as it is.

    ## Episode end
    - Termination: `</answer>` is complete.
    - Truncation: the turns or the context are used up. A value function should bootstrap there: the episode was cut
      off, not finished. An answer that is completed by the last allowed token terminates.

    An action that cannot be read (an empty query, a closing tag without its opening one, a turn past its token limit)
    is answered by a notice in the observation, and counts as a turn.

    ## Information
    `question_id`, `searches` and `invalid_actions` so far, `cut_passages` (how many observations were cut to fit), and
    at the end `em` and `f1` of the answer, whatever the reward is. JSON can hold it.

    ## Arguments
    - `questions`: "embedded" (the training questions of the embedded world; "embedded:dev" and "embedded:test" for the
      others), a FlashRAG JSONL file, or a list of `Question`.
    - `corpus`: "embedded", a FlashRAG JSONL file, or a list of `Passage`. Not used with a retriever object.
    - `retriever`: "bm25", or an object with `search(queries, k)`.
    - `tokenizer`: what `search_gym.tokenizers.load` takes: "embedded", a folder, a hub id, an object.
    - `reward`, `prompt`, `max_searches`, `top_k`, `max_turns`, `max_turn_tokens`, `max_observation_tokens`,
      `max_context_tokens`: see `search_gym.episode.Rules`.
    - `render_mode`: None, or "ansi": `render()` returns the dialogue so far.

    ## Version history
    v0: first version.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012  (Gymnasium declares it so)

    def __init__(
        self,
        *,
        questions: str | PathLike[str] | Sequence[Question] = "embedded",
        corpus: str | PathLike[str] | Sequence[Passage] = "embedded",
        retriever: str | Retriever = "bm25",
        tokenizer: Any = "embedded",
        reward: str | Reward = "em",
        prompt: str | PromptTemplate = "search-r1",
        render_mode: str | None = None,
        **budgets: Any,
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"unknown render_mode {render_mode!r}; there is 'ansi'")
        self.render_mode = render_mode
        self.rules = Rules(prompt=prompt, reward=reward, **budgets)
        self.tokenizer = tokenizers.load(tokenizer)
        self.questions = open_questions(questions)
        self.retriever = open_retriever(retriever, corpus)
        self._by_id = {question.id: question for question in self.questions}
        self._order: Iterator[int] = iter(())
        self.episode: Episode | None = None
        size = self.rules.max_context_tokens
        self.action_space = spaces.Discrete(self.tokenizer.vocab_size)
        self.observation_space = spaces.Dict(
            {
                "tokens": spaces.Box(0, self.tokenizer.vocab_size - 1, (size,), np.int32),
                "length": spaces.Discrete(size + 1),
                "loss_mask": spaces.MultiBinary(size),
            }
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin the next question. See the class for `seed` and `options`."""
        super().reset(seed=seed)
        if seed is not None:
            self._order = iter(())
        self.episode = Episode(self._choose(options or {}), self.tokenizer, self.rules)
        self._tokens = np.full(self.rules.max_context_tokens, self.tokenizer.pad_id, np.int32)
        self._mask = np.zeros(self.rules.max_context_tokens, np.int8)
        self._written = 0
        return self._observation(self.episode), self._info(self.episode)

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one token of the policy; carry out the search that it completes, if it does."""
        episode = self.episode
        if episode is None:
            raise RuntimeError("call reset() before step()")
        if episode.done:
            raise RuntimeError(f"the episode of question {episode.question.id!r} is over: call reset()")
        if not 0 <= int(action) < self.tokenizer.vocab_size:
            raise ValueError(f"token {action} is outside the vocabulary of {self.tokenizer.vocab_size} ids")
        self._carry_out(episode.feed([int(action)]), episode)
        reward = episode.reward if episode.done else 0.0
        return self._observation(episode), reward, episode.terminated, bool(episode.truncated), self._info(episode)

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The dialogue so far, with render_mode="ansi"."""
        if self.render_mode is None or self.episode is None:
            return None
        return self.episode.text

    def _carry_out(self, events: list[Event], episode: Episode) -> None:
        for event in events:
            if isinstance(event, Search):
                episode.observe(self.retriever.search([event.query], self.rules.top_k)[0])

    def _choose(self, options: dict[str, Any]) -> Question:
        unknown = options.keys() - {"question"}
        if unknown:
            raise ValueError(f"reset() knows the option 'question' alone, not {', '.join(sorted(unknown))}")
        if "question" in options:
            if options["question"] not in self._by_id:
                raise ValueError(f"no question has the id {options['question']!r}")
            return self._by_id[options["question"]]
        index = next(self._order, None)
        if index is None:
            self._order = iter(self.np_random.permutation(len(self.questions)).tolist())
            index = next(self._order)
        return self.questions[index]

    def _observation(self, episode: Episode) -> Observation:
        length = len(episode.ids)
        # Only what is new is written, so that a step costs the same at the end of a long episode as at its beginning.
        self._tokens[self._written : length] = episode.ids[self._written :]
        self._mask[self._written : length] = episode.mask[self._written :]
        self._written = length
        return {"tokens": self._tokens.copy(), "length": np.int64(length), "loss_mask": self._mask.copy()}

    def _info(self, episode: Episode) -> dict[str, Any]:
        info: dict[str, Any] = {
            "question_id": episode.question.id,
            "searches": episode.searches,
            "invalid_actions": sum(turn.kind == "invalid" for turn in episode.turns),
            "cut_passages": sum(turn.cut for turn in episode.turns),
        }
        if episode.done:
            info |= {"em": episode.em, "f1": episode.f1}
        return info
