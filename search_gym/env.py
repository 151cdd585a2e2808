"""SearchQAEnv: one Episode behind gymnasium.Env, one token a step."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, Unpack

import gymnasium
from gymnasium import spaces

from search_gym import rendering
from search_gym.episode import Episode
from search_gym.searching import carry_out
from search_gym.setting import Arguments, Feed, Info, Observation, Seat, Setting, TokenAction, read_options

Action = TypeVar("Action")


class EpisodeEnv(gymnasium.Env[Observation, Action], Generic[Action]):
    """What the environments of one episode share; they differ in how much of a turn an action holds."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "human"], "render_fps": 4}  # pyright: ignore[reportIncompatibleVariableOverride]
    feed: ClassVar[Feed]
    turns: ClassVar[bool]
    action_space: spaces.Space[Any]

    def __init__(self, *, render_mode: str | None = None, **setting: Any) -> None:
        self.render_mode = rendering.checked(render_mode)
        self.setting = Setting(**setting)
        self.observation_space = self.setting.observation_space
        self._seat = Seat(self.setting)
        self._printer = rendering.Printer()

    @property
    def episode(self) -> Episode | None:
        """The episode that is played, or was played last."""
        return self._seat.episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Begin the next question. See the class for `seed` and `options`."""
        super().reset(seed=seed)
        if seed is not None or self._seat.order is None:
            self._seat.order = self.setting.order_of(self.np_random)
        self._seat.begin(read_options(options, ["question"]).get("question"))
        self._print()
        return self._seat.observation(), self._seat.info(turns=self.turns)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        """Take the action; carry out the search that it completes, if it does."""
        episode = self._seat.playing()
        type(self).feed(self._seat, action)
        carry_out([episode], self.setting.retriever)
        self._print()
        info = self._seat.info(turns=self.turns)
        return self._seat.observation(), self._seat.reward(), episode.terminated, bool(episode.truncated), info

    def render(self) -> str | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The dialogue so far, with render_mode="ansi"; nothing with "human", for it is printed already."""
        if self.render_mode != "ansi":
            return None
        if self.episode is None:
            raise RuntimeError("call reset() before render()")
        return rendering.dialogue(self.episode)

    def _print(self) -> None:
        if self.render_mode == "human" and self.episode is not None:
            self._printer.show(self.episode)


class SearchQAEnv(EpisodeEnv[TokenAction]):
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
    At the end of the episode: `reward` of what the policy wrote, by default exact match of the answer (0 or 1). Before
    it 0, or less where the rules put a price on a search or a penalty on an invalid action (`search_cost`,
    `invalid_cost`), at the step that completes it.

    ## Starting state
    The prompt of the next question. `reset(seed=…)` shuffles the questions by that seed and begins with the first of
    them; `reset()` goes on to the next, and shuffles again after the last. With `order="sequential"` they come in their
    own order, and a seed goes back to the first. `reset(options={"question": id})` asks the question with that id, and
    leaves the order as it is.

    ## Episode end
    - Termination: `</answer>` is complete.
    - Truncation: the turns or the context are used up. An answer that is completed by the last allowed token
      terminates. As everywhere in Gymnasium, a learner bootstraps at a truncation and not at a termination: the value
      of the last observation is part of the return where the episode was cut off, and is 0 where it was finished.

    An action that cannot be read (an empty query, a closing tag without its opening one, a turn past its token limit)
    is answered by a notice in the observation, and counts as a turn.

    ## Information
    `question_id`; so far, the numbers of `searches`, of `failed_searches` among them, of `invalid_actions` and of
    `cut_passages` (observations that were cut to fit); at the end `score` (the reward without costs), and `em` and `f1`
    of the answer, whatever the reward is. JSON can hold it.

    ## Arguments
    - `questions`: "embedded" (the training questions of the embedded world; "embedded:dev" and "embedded:test" for the
      others), a file, a data set, a list of `Question`, or a mixture: all that `search_gym.sources.open_questions`
      takes.
    - `corpus`: "embedded", a file or data set of passages, a folder that `search-gym index` made, or a list of
      `Passage`; None: "embedded", or what the retriever brings.
    - `retriever`: "bm25", "dense", "hybrid" or "rerank"; a mapping with such a "name" and options; a folder that
      `search-gym index` made; a server's "http://host:port"; an object with `search(queries, k)`. See
      `search_gym.sources.open_retriever`.
    - `on_search_error`: what becomes of a search that could not be carried out, as when a server is away for too long.
      "tell": the policy reads that it failed, and `failed_searches` counts it; "raise": `search_gym.SearchError`.
    - `tokenizer`: what `search_gym.tokenizers.load` takes: "embedded", a folder, a hub id, an object.
    - `order`: "shuffled" or "sequential".
    - `reward`, `prompt`, `max_searches`, `top_k`, `max_turns`, `max_turn_tokens`, `max_observation_tokens`,
      `max_context_tokens`, `search_cost`, `invalid_cost`: see `search_gym.rules.Rules`.
    - `render_mode`: None; "ansi": `render()` returns the dialogue so far, in colours; "human": it is printed as it goes.

    ## Version history
    v0: first version.
    """

    feed = Seat.feed_token
    turns = False

    def __init__(self, **arguments: Unpack[Arguments]) -> None:
        super().__init__(**arguments)
        self.action_space = self.setting.token_space
