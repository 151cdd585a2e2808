"""The viewer's page in real headless Chromium: what a person clicks and types, and what the list then holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from browsing import Visit
from playing import TOKENIZER
from recorded import play, write_run

from search_gym.cli import main
from search_gym.trajectory import Trajectory

pytestmark = pytest.mark.slow

MANY = 5000


def test_the_list_holds_all_and_the_first_is_shown(visit: Callable[..., Visit], played: list[Trajectory]) -> None:
    seen = visit()
    assert seen.count() == len(played)
    assert seen.rows()[:5] == [trajectory.question for trajectory in played[:5]]
    assert seen.page.locator(".pane h2").inner_text() == played[0].question
    assert seen.page.locator("[aria-selected=true]").count() == 1


def test_the_tokens_make_up_what_the_policy_wrote(visit: Callable[..., Visit], played: list[Trajectory]) -> None:
    for line in (1, 4, 9):
        seen = visit(f"#at=trajectories.jsonl:{line}")
        turns = [turn for turn in played[line - 1].turns if turn.policy[0] < turn.policy[1]]
        assert seen.body_text("policy") == "".join(turn.text for turn in turns)
        size = sum(turn.policy[1] - turn.policy[0] for turn in turns)
        assert seen.page.locator(".block.policy .t").count() == size


@pytest.mark.parametrize(
    ("field", "value", "keeps"),
    [
        ("algorithm", "grpo", lambda t: t.extra["algorithm"] == "grpo"),
        ("seed", "2", lambda t: t.extra["seed"] == 2),
        ("em", "right", lambda t: t.em == 1),
        ("searches", "2", lambda t: t.searches == 2),
        ("end", "turns", lambda t: t.truncated == "turns"),
    ],
    ids=["algorithm", "seed", "em", "searches", "end"],
)
def test_a_menu_filters(
    visit: Callable[..., Visit], played: list[Trajectory], field: str, value: str, keeps: Callable[[Trajectory], bool]
) -> None:
    expected = [trajectory.question for trajectory in played if keeps(trajectory)]
    assert 0 < len(expected) < len(played)
    seen = visit()
    seen.page.locator("summary").click()
    seen.page.locator(f"[data-state={field}]").select_option(value)
    assert seen.count() == len(expected)
    assert seen.rows()[:5] == expected[:5]
    assert seen.hash()[field] == value
    again = visit(f"#{field}={value}")
    assert again.count() == len(expected)
    again.page.locator("summary").click()
    again.page.locator("#clear").click()
    assert again.count() == len(played)


@pytest.mark.parametrize(
    ("name", "low", "high", "of"),
    [("step", "2", "3", lambda t: t.extra["step"]), ("reward", "0.5", "", lambda t: t.reward)],
    ids=["step", "reward"],
)
def test_a_range_filters(
    visit: Callable[..., Visit],
    played: list[Trajectory],
    name: str,
    low: str,
    high: str,
    of: Callable[[Trajectory], float],
) -> None:
    expected = [t for t in played if float(low) <= of(t) <= float(high or "inf")]
    assert 0 < len(expected) < len(played)
    seen = visit()
    seen.page.locator("summary").click()
    for end, value in (("from", low), ("to", high)):
        seen.page.get_by_label(f"{name.title()} {end}").fill(value)
        seen.page.get_by_label(f"{name.title()} {end}").press("Tab")
    assert seen.count() == len(expected)


def test_search_is_over_questions_and_dialogues(visit: Callable[..., Visit], played: list[Trajectory]) -> None:
    seen = visit()
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("DOCUMENT.title = ")
    expected = [t for t in played if "document.title = " in t.text]
    assert 0 < len(expected) < len(played)
    seen.page.locator("#count", has_text=f"{len(expected)} of").wait_for()
    assert seen.hash()["q"].strip() == "DOCUMENT.title ="
    seen.page.locator(".row").first.click()
    assert seen.page.locator(".pane h2").inner_text() == expected[0].question
    marked = "[...CSS.highlights.get('match')].map(range => range.toString())"
    assert set(seen.page.evaluate(marked)) == {"document.title ="}
    seen.page.locator("#query").fill("(no] such * text")
    seen.page.get_by_text("Nothing matches.").wait_for()
    seen.page.get_by_text("Clear search and filters").click()
    assert seen.count() == len(played)


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
def test_sorting(visit: Callable[..., Visit], played: list[Trajectory], down: bool) -> None:
    seen = visit()
    seen.page.locator("#sort").select_option("reward")
    if down:
        seen.page.locator("#down").click()
    expected = sorted(played, key=lambda t: -t.reward if down else t.reward)
    assert seen.rows()[:5] == [trajectory.question for trajectory in expected[:5]]


def test_keys_lead_through_the_list(visit: Callable[..., Visit], played: list[Trajectory]) -> None:
    seen = visit()

    def place() -> int:
        return int(seen.hash()["at"].partition(":")[2])

    for key, expected in [
        ("j", 2),
        ("j", 3),
        ("k", 2),
        ("ArrowDown", 3),
        ("ArrowUp", 2),
        ("End", len(played)),
        ("Home", 1),
    ]:
        seen.page.keyboard.press(key)
        assert place() == expected
        active = seen.page.locator("#list").get_attribute("aria-activedescendant")
        assert active == f"row-{expected - 1}"
        assert seen.page.locator(f"#{active}").get_attribute("aria-posinset") == str(expected)
    seen.page.keyboard.press("k")  # there is none before the first
    assert place() == 1
    seen.page.keyboard.press("Enter")
    assert seen.page.evaluate("document.activeElement.tagName") == "H2"


def test_two_dialogues_stand_side_by_side(visit: Callable[..., Visit], played: list[Trajectory]) -> None:
    seen = visit()
    seen.page.keyboard.press("j")
    seen.page.keyboard.press("c")
    assert seen.page.locator(".pane").count() == 2
    seen.page.keyboard.press("j")
    titles = seen.page.locator(".pane h2").all_inner_texts()
    assert titles == [played[1].question, played[2].question]
    left, right = (seen.page.locator(".pane").nth(place).bounding_box() for place in (0, 1))
    assert left["x"] + left["width"] <= right["x"] + 1
    assert left["y"] == right["y"]
    again = visit(seen.page.evaluate("location.hash"))
    assert again.page.locator(".pane h2").all_inner_texts() == titles
    again.page.keyboard.press("c")
    assert again.page.locator(".pane h2").all_inner_texts() == [played[2].question]


def test_passages_fold(visit: Callable[..., Visit], played: list[Trajectory]) -> None:
    line = next(number for number, t in enumerate(played, start=1) if t.searches)
    seen = visit(f"#at=trajectories.jsonl:{line}")
    body = seen.page.locator(".block.retrieved .body").first
    assert body.is_visible()
    seen.page.keyboard.press("f")
    assert not body.is_visible()
    assert seen.hash()["fold"] == "1"
    heading = seen.page.locator(".block.retrieved .heading").first
    assert heading.get_attribute("aria-expanded") == "false"
    heading.click()
    assert body.is_visible()
    assert not seen.page.locator(".block.prompt .body").is_visible()
    seen.page.locator(".block.prompt .heading").click()
    assert seen.body_text("prompt") == TOKENIZER.decode(played[line - 1].ids[: played[line - 1].prompt_length])


def test_help_opens_and_takes_the_keys(visit: Callable[..., Visit]) -> None:
    seen = visit()
    before = seen.hash()
    seen.page.keyboard.press("?")
    assert seen.page.locator("#help").is_visible()
    seen.page.keyboard.press("j")
    assert seen.hash() == before
    seen.page.keyboard.press("Escape")
    assert not seen.page.locator("#help").is_visible()


def test_typing_is_no_command(visit: Callable[..., Visit]) -> None:
    seen = visit()
    before = seen.hash()["at"]
    seen.page.locator("#query").fill("")
    seen.page.locator("#query").press_sequentially("jckf?/")
    seen.page.locator("#count", has_text="0 of").wait_for()
    assert seen.hash() == {"at": before, "q": "jckf?/"}
    assert not seen.page.locator("#help").is_visible()


def test_thousands_of_dialogues_take_few_nodes(visit: Callable[..., Visit], tmp_path: Path) -> None:
    some = [play(seed) for seed in range(50)]
    rows = [replace(some[n % 50], question=f"Question {n}?") for n in range(MANY)]
    run = write_run(tmp_path / "many", rows)
    assert main(["view", str(run), "--no-open"]) == 0
    seen = visit(path=run / "view.html")
    nodes = "document.querySelectorAll('.row').length"
    assert seen.count() == MANY
    most = 0
    for top in (0, 100_000, 200_000, 10**9):
        seen.page.evaluate(f"document.getElementById('list').scrollTop = {top}")
        first = f"Question {min(top // 84, MANY - 1)}?" if top < 10**9 else f"Question {MANY - 1}?"
        seen.page.locator(".row", has_text=re.compile(re.escape(first))).wait_for()
        most = max(most, seen.page.evaluate(nodes))
    assert 5 < most < 40
    assert seen.page.evaluate("document.querySelectorAll('*').length") < 1000
    seen.page.locator("#query").fill("question 4321?")
    seen.page.locator("#count", has_text=f"1 of {MANY:,}").wait_for()
    assert seen.rows() == ["Question 4321?"]
