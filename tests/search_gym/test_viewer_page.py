"""The viewer's page in real headless Chromium: what a person clicks, types and reads; and that passages do nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, open_chromium
from playing import TOKENIZER
from recorded import NASTY, measured, play, write_run

from search_gym.cli import main
from search_gym.trajectory import Trajectory

pytestmark = pytest.mark.slow

COUNT = 60
MANY = 5000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with open_chromium() as browser:
        yield browser


def valued(trajectory: Trajectory) -> Trajectory:
    """With a ratio of 0.5, 1, 2 and so on, and entropies that grow."""
    length = len(trajectory.ids)
    ratio = [(0.5, 1.0, 2.0)[place % 3] for place in range(length)]
    return measured(
        trajectory, ratio=ratio, advantage=trajectory.reward - 0.5, entropy=[0.01 * i for i in range(length)]
    )


@pytest.fixture(scope="module")
def played() -> list[Trajectory]:
    return [valued(play(seed, NASTY)) for seed in range(COUNT)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, played: list[Trajectory]) -> Path:
    run = write_run(tmp_path_factory.mktemp("viewer") / "run", played)
    assert main(["view", str(run), "--no-open"]) == 0
    return run / "view.html"


DESKTOP = {"viewport": {"width": 1280, "height": 900}}


@pytest.fixture(scope="module")
def desktop(chromium: Any) -> Any:
    """A window that tests share: only to open one takes long."""
    return chromium.new_context(**DESKTOP)


@pytest.fixture
def visit(chromium: Any, desktop: Any, file: Path) -> Iterator[Callable[..., Visit]]:
    """Opens the page. At the end it has complained of nothing and asked for nothing."""
    opened: list[Visit] = []

    def open_page(fragment: str = "", path: Path = file, **context: Any) -> Visit:
        opened.append(Visit(chromium.new_context(**DESKTOP | context) if context else desktop, path, fragment))
        return opened[-1]

    yield open_page
    for one in opened:
        assert one.complaints == []
        assert one.requests == []
        one.page.close()


def test_the_list_holds_all_and_the_first_is_shown(visit: Callable[..., Visit], played: list[Trajectory]) -> None:
    seen = visit()
    assert seen.count() == COUNT
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


def test_passages_do_nothing(visit: Callable[..., Visit], played: list[Trajectory]) -> None:
    seen = visit()
    title = seen.page.title()
    found = set()
    for line, trajectory in enumerate(played[:20], start=1):
        seen.page.evaluate(f"location.hash = 'at=trajectories.jsonl:{line}'")
        seen.page.locator(".pane .origin", has_text=re.compile(f"line {line}$|line {line} Show")).wait_for()
        retrieved = seen.body_text("retrieved")
        spans = [turn.inserted for turn in trajectory.turns if turn.kind == "search"]
        assert retrieved == "".join(TOKENIZER.decode(trajectory.ids[begin:end]) for begin, end in spans)
        found |= {nasty for nasty in NASTY if nasty in retrieved}
    assert len(found) >= len(NASTY) - 2  # a long one may be cut
    assert seen.page.title() == title
    assert seen.page.locator("script").count() == 2
    assert seen.page.locator("img, svg, iframe, object, link[rel=stylesheet]").count() == 0


def test_the_policy_of_the_page_refuses_other_scripts(desktop: Any, file: Path) -> None:
    seen = Visit(desktop, file)
    seen.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 1'}))"
    )
    seen.page.evaluate("fetch('https://example.com/').catch(() => 0)")
    seen.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<b onclick=\"document.title = 1\" id=b>b</b>')")
    seen.page.evaluate("document.getElementById('b').click()")
    assert seen.page.title() != "1"
    assert len([text for text in seen.complaints if "Content Security Policy" in text]) >= 3
    seen.page.close()


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
    assert 0 < len(expected) < COUNT
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
    assert again.count() == COUNT


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
    assert 0 < len(expected) < COUNT
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
    assert 0 < len(expected) < COUNT
    seen.page.locator("#count", has_text=f"{len(expected)} of").wait_for()
    assert seen.hash()["q"].strip() == "DOCUMENT.title ="
    seen.page.locator(".row").first.click()
    assert seen.page.locator(".pane h2").inner_text() == expected[0].question
    marked = "[...CSS.highlights.get('match')].map(range => range.toString())"
    assert set(seen.page.evaluate(marked)) == {"document.title ="}
    seen.page.locator("#query").fill("(no] such * text")
    seen.page.get_by_text("Nothing matches.").wait_for()
    seen.page.get_by_text("Clear search and filters").click()
    assert seen.count() == COUNT


@pytest.mark.parametrize("down", [False, True], ids=["up", "down"])
def test_sorting(visit: Callable[..., Visit], played: list[Trajectory], down: bool) -> None:
    seen = visit()
    seen.page.locator("#sort").select_option("reward")
    if down:
        seen.page.locator("#down").click()
    expected = sorted(played, key=lambda t: -t.reward if down else t.reward)
    assert seen.rows()[:5] == [trajectory.question for trajectory in expected[:5]]


def test_keys_lead_through_the_list(visit: Callable[..., Visit]) -> None:
    seen = visit()
    place = lambda: int(seen.hash()["at"].partition(":")[2])  # noqa: E731
    for key, expected in [("j", 2), ("j", 3), ("k", 2), ("ArrowDown", 3), ("ArrowUp", 2), ("End", COUNT), ("Home", 1)]:
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


def test_colours_follow_the_values(visit: Callable[..., Visit]) -> None:
    seen = visit()
    tokens = seen.page.locator(".block.policy .t")
    kinds = {tokens.nth(place).get_attribute("class") for place in range(3)}
    assert not any("low" in kind or "high" in kind for kind in kinds if kind)
    seen.page.locator("#colour").select_option("ratio")
    begin = int(seen.page.evaluate("document.querySelector('.block.policy .t').piece.position"))
    for place in range(3):
        token, ratio = tokens.nth(place), (0.5, 1.0, 2.0)[(begin + place) % 3]
        share = token.evaluate("token => token.style.getPropertyValue('--share')")
        assert share == ("0%" if ratio == 1 else "70%")
        classes = (token.get_attribute("class") or "").split()
        assert ("low" in classes) == (ratio < 1)
        assert (token.evaluate("token => getComputedStyle(token).backgroundColor") != "rgba(0, 0, 0, 0)") or ratio == 1
    assert seen.page.locator(".ends span").all_inner_texts() == ["≤ 0.5", "1", "≥ 2"]
    seen.page.locator("#colour").select_option("entropy")
    assert "more" in (tokens.first.get_attribute("class") or "")
    assert seen.hash()["colour"] == "entropy"


def test_values_are_shown_under_the_pointer_and_with_keys(
    visit: Callable[..., Visit], played: list[Trajectory]
) -> None:
    seen = visit()
    tip = seen.page.locator("#tip")
    assert not tip.is_visible()
    seen.page.locator(".block.policy .t").first.hover()
    begin = played[0].prompt_length
    expected = {
        "Kind": "policy",
        "Position": str(begin),
        "Importance ratio": f"{(0.5, 1.0, 2.0)[begin % 3]:g}",
        "Entropy": f"{0.01 * begin:.3g}",
    }
    names, values = (tip.locator(tag).all_inner_texts() for tag in ("dt", "dd"))
    shown = dict(zip(names, values, strict=True))
    assert expected.items() <= shown.items()
    assert {"Text", "Advantage", "Log-prob", "Probability"} <= shown.keys()
    seen.page.mouse.move(1, 1)
    assert not tip.is_visible()
    seen.page.locator(".dialogue").focus()
    for step in range(3):
        seen.page.keyboard.press("ArrowRight")
        assert tip.locator("dd").nth(2).inner_text() == str(begin + step)
        assert seen.page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "tip"
    seen.page.keyboard.press("ArrowLeft")
    assert tip.locator("dd").nth(2).inner_text() == str(begin + 1)
    assert seen.page.locator(".t[tabindex]").count() == 1
    seen.page.keyboard.press("Escape")
    assert not tip.is_visible()


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


def test_on_a_phone_list_and_dialogue_take_turns(visit: Callable[..., Visit]) -> None:
    seen = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = seen.page
    assert page.locator("#list").is_visible()
    assert not page.locator("#panel").is_visible()
    page.locator(".row").nth(2).tap()
    assert page.locator("#panel").is_visible()
    assert not page.locator("#list").is_visible()
    page.locator(".block.policy .t").first.tap()
    assert page.locator("#tip").is_visible()
    page.locator("#compare").click()
    page.locator("#next").click()
    first, second = (page.locator(".pane").nth(place).bounding_box() for place in (0, 1))
    assert first["y"] + first["height"] <= second["y"] + 1
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.go_back()
    page.locator("#list").wait_for()
    assert not page.locator("#panel").is_visible()
    page.locator(".row").nth(1).tap()
    page.locator("#back").click()
    assert page.locator("#list").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_themes(visit: Callable[..., Visit], scheme: str) -> None:
    seen = visit("#colour=ratio", color_scheme=scheme)
    assert lightness(seen, "body") > 0.8 if scheme == "light" else lightness(seen, "body") < 0.2
    for place in (".row .question", ".facts", ".pane h2", ".scores", ".title", ".retrieved .body, .policy .body"):
        assert contrast(seen, place) >= 4.5, place
    for kind in ("low", "high"):
        assert contrast(seen, f".t.{kind}[style*='70%']") >= 4.5, kind
    other = "dark" if scheme == "light" else "light"
    while other not in seen.page.locator("#theme").inner_text():
        seen.page.locator("#theme").click()
    assert (lightness(seen, "body") > 0.5) == (other == "light")


def test_nothing_moves_for_those_who_want_no_motion(visit: Callable[..., Visit]) -> None:
    seen = visit(reduced_motion="reduce")
    moving = (
        "[...document.querySelectorAll('*')].filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"
    )
    assert seen.page.evaluate(moving) == 0


def test_every_control_has_a_name(visit: Callable[..., Visit]) -> None:
    seen = visit()
    seen.page.locator("summary").click()
    tree = seen.page.locator("body").aria_snapshot()
    for role in ("button", "combobox", "searchbox", "spinbutton", "option", "article", "navigation", "main", "listbox"):
        lines = [line.strip() for line in tree.splitlines() if line.strip().startswith(f"- {role}")]
        assert lines, role
        assert all('"' in line for line in lines), lines
    assert seen.page.locator("#count[role=status][aria-live=polite]").count() == 1


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


_COLOURS = """(selector) => {
  const behind = [];
  const element = document.querySelector(selector);
  for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const drawn = [];
  for (const colour of behind) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
  drawn.push([...canvas.getImageData(0, 0, 1, 1).data]);
  canvas.fillStyle = getComputedStyle(element).color;
  canvas.fillRect(0, 0, 1, 1);
  drawn.push([...canvas.getImageData(0, 0, 1, 1).data]);
  return drawn;
}"""


def luminance(rgb: list[int]) -> float:
    """Relative luminance of WCAG 2."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (value / 255 for value in rgb[:3])]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def lightness(seen: Visit, selector: str) -> float:
    """How light what is behind an element is, from 0 to 1."""
    return luminance(seen.page.evaluate(_COLOURS, selector)[0])


def contrast(seen: Visit, selector: str) -> float:
    """The contrast of an element's text with what is behind it, by WCAG 2: 4.5 and more is readable."""
    behind, text = (luminance(rgb) for rgb in seen.page.evaluate(_COLOURS, selector))
    return (max(behind, text) + 0.05) / (min(behind, text) + 0.05)
