"""SearchQAVectorEnv and SearchQATurnsVectorEnv: many Episodes, one batched search for all that ask in the same step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, Unpack

import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from search_gym import rendering
from search_gym.episode import Episode
from search_gym.searching import carry_out
from search_gym.setting import Arguments, Check, Feed, Info, Observation, Seat, Setting, TurnAction, read_options

Action = TypeVar("Action")


class EpisodeVectorEnv(VectorEnv[Observation, Action, np.ndarray], Generic[Action]):
    """What both vector environments share; they differ in how much of a turn an action holds."""

    check: ClassVar[Check]
    feed: ClassVar[Feed]
    turns: ClassVar[bool]

    def __init__(
        self,
        num_envs: int = 1,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        **arguments: Unpack[Arguments],
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be at least 1, not {max_episode_steps}")
        self.num_envs = num_envs
        self.autoreset_mode = _mode(autoreset_mode)
        self.metadata = {"render_modes": ["ansi"], "autoreset_mode": self.autoreset_mode}
        self.render_mode = rendering.checked(arguments.pop("render_mode", None))
        if self.render_mode == "human":
            raise ValueError("a vector environment prints no dialogues: render_mode is None or 'ansi'")
        self.setting = Setting(**arguments)
        self.max_episode_steps = max_episode_steps
        self.single_observation_space = self.setting.observation_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.single_action_space = self._single_action_space()
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.ended: dict[int, Episode] = {}
        """The episodes that ended in the last step, by place; with SAME_STEP others have begun there already."""
        size = num_envs, self.setting.rules.max_context_tokens
        self._tokens, self._masks = np.empty(size, np.int32), np.empty(size, np.int8)
        self._seats = [Seat(self.setting, rows) for rows in zip(self._tokens, self._masks, strict=True)]
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._steps = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, np.bool_)

    def _single_action_space(self) -> spaces.Space[Any]:
        raise NotImplementedError

    @property
    def episodes(self) -> tuple[Episode | None, ...]:
        """The episode in each place."""
        return tuple(seat.episode for seat in self._seats)

    def reset(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begin an episode in every place, or in those that options["reset_mask"] names.

        Args:
            seed: a whole number s, for the seeds s, s + 1, …; or one seed for each place.
            options: "question": an id, or one for each place (None: the next question). "reset_mask": a boolean array,
                at least one of it true; the other places go on as they are.
        """
        given = read_options(options, ["question", "reset_mask"])
        mask = self._mask(given.get("reset_mask"))
        if any(seat.episode is None for seat in self._seats) and not mask.all():
            raise ValueError("the first reset() begins an episode in every place: leave options['reset_mask'] out")
        questions = self._each("question", given.get("question"), str)
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else self._each("seed", seed, int)
        for i in np.flatnonzero(mask).tolist():
            if seeds[i] is not None or self._rngs[i] is None:
                self._seed(i, seeds[i])
            self._begin(i, questions[i])
        self.ended = {}
        return self._observations(), self._infos(np.flatnonzero(mask).tolist())

    def step(self, actions: Any) -> tuple[Observation, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Take an action in every place; carry out all searches that they complete in one call.

        Where an episode was over before the step, NEXT_STEP begins the next one there and does not look at the action;
        DISABLED raises RuntimeError.
        """
        playing = self._playing()
        self._check(actions, playing)  # before anything moves, so that an error leaves all as it was
        for i in np.flatnonzero(self._over).tolist():
            self._begin(i, None)
        for i in playing:
            type(self).feed(self._seats[i], actions[i])
        carry_out((self._episode(i) for i in playing), self.setting.retriever)
        rewards, terminations, truncations = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), np.bool_)
        self._steps[playing] += 1
        for i in playing:
            episode = self._episode(i)
            rewards[i], terminations[i] = self._seats[i].reward(), episode.terminated
            truncations[i] = bool(episode.truncated)
        if self.max_episode_steps is not None:  # as gymnasium.wrappers.TimeLimit does
            truncations |= self._steps >= self.max_episode_steps
        self._over = terminations | truncations
        over = np.flatnonzero(self._over).tolist()
        self.ended = {i: self._episode(i) for i in over}
        final: Info = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP and over:
            final = self._final(over)
            for i in over:
                self._begin(i, None)
        return self._observations(), rewards, terminations, truncations, self._infos(range(self.num_envs)) | final

    def render(self) -> tuple[str, ...] | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The dialogues so far, with render_mode="ansi"."""
        if self.render_mode is None:
            return None
        return tuple(rendering.dialogue(self._episode(i)) for i in range(self.num_envs))

    def _playing(self) -> list[int]:
        """The places whose episodes take an action in this step."""
        if any(seat.episode is None for seat in self._seats):
            raise RuntimeError("call reset() before step()")
        over = np.flatnonzero(self._over).tolist()
        if over and self.autoreset_mode is AutoresetMode.DISABLED:
            raise RuntimeError(f"the episodes {over} are over: begin others with reset(options={{'reset_mask': …}})")
        return np.flatnonzero(~self._over).tolist()

    def _check(self, actions: Any, places: Sequence[int]) -> None:
        """Raise an error where an action of the places cannot be taken."""
        if len(actions) != self.num_envs:
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments")
        for i in places:
            type(self).check(self._seats[i], actions[i])

    def _seed(self, i: int, seed: int | None) -> None:
        self._rngs[i] = rng = seeding.np_random(seed)[0]
        if self.setting.order == "shuffled":
            self._seats[i].order = self.setting.order_of(rng)
        elif i == 0 or self._seats[0].order is None:
            # In order, the places take their questions from one list, so that each is asked once.
            order = self.setting.order_of(rng)
            for seat in self._seats:
                seat.order = order

    def _begin(self, i: int, question: str | None) -> None:
        self._seats[i].begin(question)
        self._steps[i], self._over[i] = 0, False

    def _episode(self, i: int) -> Episode:
        episode = self._seats[i].episode
        if episode is None:
            raise RuntimeError("call reset() first")
        return episode

    def _observations(self) -> Observation:
        lengths = np.array([seat.write() for seat in self._seats], np.int64)
        # Copies, for the seats go on writing.
        return {"tokens": self._tokens.copy(), "length": lengths, "loss_mask": self._masks.copy()}

    def _infos(self, places: Iterable[int]) -> Info:
        """What `_add_info` makes of the infos of those places, a whole column at a time, which is far faster."""
        infos = {i: self._seats[i].info(turns=self.turns) for i in places}
        batched: Info = {}
        for key in dict.fromkeys(key for info in infos.values() for key in info):
            values = {i: info[key] for i, info in infos.items() if key in info}
            kind = type(next(iter(values.values())))
            column = np.full(self.num_envs, None, object) if kind is str else np.zeros(self.num_envs, kind)
            column[[*values]] = np.array([*values.values()], column.dtype)
            there = np.zeros(self.num_envs, np.bool_)
            there[[*values]] = True
            batched[key], batched[f"_{key}"] = column, there
        return batched

    def _final(self, over: Sequence[int]) -> Info:
        observations, there = np.full(self.num_envs, None, object), np.zeros(self.num_envs, np.bool_)
        for i in over:
            observations[i], there[i] = self._seats[i].observation(), True
        final = {"final_obs": observations, "final_info": self._infos(over)}
        return final | {f"_{key}": there.copy() for key in final}

    def _mask(self, mask: Any) -> np.ndarray:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)):
            raise ValueError(f"options['reset_mask'] must be a boolean array of {self.num_envs} values, not {mask!r}")
        if not mask.any():
            raise ValueError("options['reset_mask'] names no place: at least one of it must be true")
        return mask

    def _each(self, name: str, value: Any, kind: type) -> list[Any]:
        """A value for each place: the one given for all of them, or those of a list."""
        if value is None or isinstance(value, kind):
            return [value] * self.num_envs
        values = list(value)
        if len(values) != self.num_envs:
            raise ValueError(f"{name} holds {len(values)} values for {self.num_envs} environments")
        return values


class SearchQAVectorEnv(EpisodeVectorEnv[np.ndarray]):
    """Many `SearchQAEnv` side by side: what `gymnasium.make_vec("SearchQA-v0", num_envs=N)` makes.

    All searches that are completed in the same step go out as one batch. Apart from that, and from the sequential order
    (in which the places take their questions from one list, so that each is asked once), every place plays exactly as
    a `SearchQAEnv` of its own would, with the seed that Gymnasium gives it: s, s + 1, ….

    ## Action space
    `MultiDiscrete`: one token id for each place.

    ## Observation space, rewards, information
    Those of `SearchQAEnv`, batched as Gymnasium batches them: arrays with a leading axis over the places, infos with
    `_key` arrays that say in which places they are set.

    ## Arguments
    - `num_envs`: how many.
    - `autoreset_mode`: what follows on the end of an episode. `AutoresetMode.NEXT_STEP`: the next step begins another
      one there, whatever the action; its reward is 0. `SAME_STEP`: another one begins at once, and `final_obs` and
      `final_info` hold what ended. `DISABLED`: nothing, `reset(options={"reset_mask": …})` does it.
    - `max_episode_steps`: an episode is truncated after so many steps.
    - those of `SearchQAEnv`, but `render_mode` "human".

    ## Version history
    v0: first version.
    """

    check = Seat.check_token
    feed = Seat.feed_token
    turns = False

    def _single_action_space(self) -> spaces.Space[Any]:
        return self.setting.token_space


class SearchQATurnsVectorEnv(EpisodeVectorEnv[Sequence[TurnAction]]):
    """Many `SearchQATurnsEnv` side by side: what `gymnasium.make_vec("SearchQATurns-v0", num_envs=N)` makes.

    As `SearchQAVectorEnv`; an action is a tuple or list with the ids of one turn for each place.
    """

    check = Seat.check_turn
    feed = Seat.feed_turn
    turns = True

    def _single_action_space(self) -> spaces.Space[Any]:
        return self.setting.turn_space


def _mode(mode: AutoresetMode | str) -> AutoresetMode:
    if isinstance(mode, AutoresetMode):
        return mode
    names = {m.name.lower(): m for m in AutoresetMode}
    if str(mode).lower() not in names:
        raise ValueError(f"unknown autoreset_mode {mode!r}; there are: {', '.join(names)}")
    return names[str(mode).lower()]
