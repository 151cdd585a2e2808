"""SearchQATurnsEnv: one Episode behind gymnasium.Env, one whole turn a step."""

from __future__ import annotations

from typing import Unpack

from search_gym.env import EpisodeEnv
from search_gym.setting import Arguments, Seat, TurnAction


class SearchQATurnsEnv(EpisodeEnv[TurnAction]):
    """Answer a question by searching, one turn at a time.

    ## Description
    As `search_gym.env.SearchQAEnv`, but a step takes all the ids of a turn. It is what fits an engine that samples
    until `</search>` or `</answer>`: the observation is what the policy reads next, the action what it writes.

    ## Action space
    `Sequence(Discrete(vocab_size), stack=True)`: a run of token ids, as an array or any sequence of whole numbers. The
    turn is over when the ids are, so a run without an action is an invalid turn. Ids after the end of the turn
    (sampled past `</search>`, an end-of-sequence id or the turn's limit) are no part of the episode, and
    `info["unused_ids"]` counts them. The ids that were taken are kept exactly as they were given.

    ## Observation space, rewards, starting state, episode end, arguments
    Those of `SearchQAEnv`. Every step but the last of an episode ends with inserted ids: passages or a notice.

    ## Information
    That of `SearchQAEnv`, and `unused_ids` of the last turn.

    ## Version history
    v0: first version.
    """

    feed = Seat.feed_turn
    turns = True

    def __init__(self, **arguments: Unpack[Arguments]) -> None:
        super().__init__(**arguments)
        self.action_space = self.setting.turn_space
