"""How the viewer's page looks in real headless Chromium, to any eye and on any screen; and that passages do nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, contrast, lightness
from playing import TOKENIZER
from recorded import NASTY

from search_gym.trajectory import Trajectory

pytestmark = pytest.mark.slow


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


def test_the_policy_of_the_page_refuses_other_scripts(desktop: Any, page_file: Path) -> None:
    seen = Visit(desktop, page_file)
    seen.page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'document.title = 1'}))"
    )
    seen.page.evaluate("fetch('https://example.com/').catch(() => 0)")
    seen.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<b onclick=\"document.title = 1\" id=b>b</b>')")
    seen.page.evaluate("document.getElementById('b').click()")
    assert seen.page.title() != "1"
    assert len([text for text in seen.complaints if "Content Security Policy" in text]) >= 3
    seen.page.close()


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
