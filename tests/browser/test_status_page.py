"""The status page in a real browser, before a real gateway: what it shows is what the gateway says, and all can use it."""

from __future__ import annotations

import os
from pathlib import Path

import expected
import pytest
from scene import scene
from tab import tab

from gateway.observe.history import BUCKETS, History

SHOWN = """(() => {
  const now = document.getElementById("as-of").dataset.now, text = id => document.getElementById(id).textContent;
  const rows = id => [...document.querySelectorAll(`#${id} tr`)].map(row => [...row.cells].map(cell => cell.textContent));
  return {state: window.answers[now], policy: text("policy"), stage: text("stage"),
    tables: Object.fromEntries(["lines", "engines", "parts", "outcomes", "refusals", "shadow"].map(id => [id, rows(id)])),
    notes: Object.fromEntries(["lines", "engines", "parts", "shadow"].map(id => [id, text("n-" + id)])),
    tiles: Object.fromEntries(["waiting", "oldest", "engines", "running", "refused", "shadow"].map(
      id => [id, [text("t-" + id), text("d-" + id)]]))};
})()"""
PLACES = """[...document.querySelectorAll("h2, thead th, #tiles > div")].map(each => {
  const {x, y, width} = each.getBoundingClientRect(); return [each.tagName, x, y, width]; })"""
OPEN_PANELS = """[...document.querySelectorAll(".panel")].filter(each => each.checkVisibility())"""


async def look_again(page):
    """Have the page look at once, by its own button."""
    before = await page.of("document.getElementById('as-of').dataset.now")
    await page.of("document.getElementById('pause').click(), document.getElementById('pause').click()")
    await page.until(f"document.getElementById('as-of').dataset.now !== '{before}'")


async def picture(page, name):
    """Keep a picture where somebody wants to look at one: PAGE_PICTURES names a folder."""
    if folder := os.environ.get("PAGE_PICTURES"):
        await page.picture(Path(folder) / f"{name}.png")


def assert_shows(shown, *, idle):
    state, tables = shown["state"], shown["tables"]
    assert sorted(row[:3] + row[4:] for row in tables["lines"]) == sorted(expected.lines(state, idle=idle))
    assert {row[3].split()[0] for row in tables["lines"] if row[4] != "0"} <= {"to"}, "who waits has a course"
    assert sorted(tables["engines"]) == sorted(expected.engines(state))
    assert sorted(tables["parts"]) == sorted(expected.parts(state))
    assert sorted(row[:2] for row in tables["outcomes"]) == sorted(expected.ends(state, "outcomes"))
    assert sorted(row[:2] for row in tables["refusals"]) == sorted(expected.ends(state, "refusals"))
    assert sorted(tables["shadow"]) == sorted(expected.shadow(state))
    assert f"policy {state['policy']['name']} (" in shown["policy"]
    assert shown["stage"] == state["stage"]


@pytest.mark.timeout(180)  # a hundred engines in one process, on a busy machine
async def test_fifty_classes_and_a_hundred_engines_the_worst_first(tmp_path, chromium):
    async with scene(tmp_path, classes=50, engines=100) as before_it:
        await before_it.load(34)
        await before_it.trouble()
        async with tab(chromium, before_it.url) as page:
            await look_again(page)
            shown = await page.of(SHOWN)
            assert_shows(shown, idle=False)
            state, tables = shown["state"], shown["tables"]
            parts = [expected.line_part(state, row) for row in tables["lines"]]
            assert len(parts) > 20
            assert parts == sorted(parts, reverse=True)
            assert [row[:2] for row in tables["engines"][:2]] == [["e99", "refusing"], ["e98", "up, drained"]]
            assert tables["engines"][2][3] == "1 of 1", "then the fullest"
            assert [row[2] for row in tables["outcomes"]] == [row[1] for row in tables["outcomes"]], (
                "it opens with history"
            )
            refused = state["totals"]["refusals"]
            assert shown["tiles"]["refused"][0] == f"{sum(refused.values()):,}"
            assert {row[0]: row[2] for row in tables["refusals"]} == {
                each: f"{many:,}" for each, many in refused.items()
            }
            assert {row[0]: row[3] for row in tables["refusals"]}["unknown_route"] == "none"
            waiting = sum(line["requests"] for _, _, line in expected.every(state, "lines"))
            assert shown["tiles"]["waiting"][0] == str(waiting)
            assert shown["tiles"]["oldest"][0] == f"{expected.fixed(100 * parts[0], 0)} %"
            assert shown["tiles"]["engines"] == ["99 of 100", "1 down, 1 drained"]
            assert shown["tiles"]["shadow"][0].endswith("%")
            assert "idle are not shown" in shown["notes"]["lines"]
            assert len(tables["parts"]) == 2
            await no_element_is_made_anew(page)
            for scheme in ("light", "dark"):
                await page.look_like(scheme)
                await picture(page, f"50x100-{scheme}")
            await page.of("document.getElementById('idle').click()")
            assert len((await page.of(SHOWN))["tables"]["lines"]) == 100
            await page.of("document.getElementById('filter').focus()")
            await page.type("Class-07")
            asked = (await page.of(SHOWN))["tables"]
            assert {row[0] for row in asked["lines"]} == {"class-07"}
            assert asked["engines"] == []
            assert page.complaints == []
            assert {url.startswith((before_it.url, "data:")) for url in page.requested} == {True}


async def no_element_is_made_anew(page):
    """A further look changes what differs: no element is made, and there are fewer changes than cells."""
    await page.of("""window.known = new Set(document.querySelectorAll("*")), window.changes = [],
      new MutationObserver(seen => window.changes.push(...seen)).observe(document.body,
        {childList: true, characterData: true, attributes: true, subtree: true}), 0""")
    await look_again(page)
    assert await page.of("[...document.querySelectorAll('*')].filter(each => !window.known.has(each)).length") == 0
    changes, cells = await page.of("[window.changes.length, document.querySelectorAll('td').length]")
    assert 0 < changes < cells / 2
    assert await page.of("document.querySelectorAll('*').length") < 20 * 240, "about twenty for each row"


async def test_nothing_moves_when_requests_come_or_the_gateway_goes_and_what_is_old_is_said(tmp_path, chromium):
    async with scene(tmp_path, classes=4, engines=1) as before_it, tab(chromium, before_it.url) as page:
        at_rest = await page.of(SHOWN)
        assert_shows(at_rest, idle=True)
        assert len(at_rest["tables"]["lines"]) == 8
        places = await page.of(PLACES)
        await page.of(f"{OPEN_PANELS}.at(1).focus()")
        await before_it.load(2)
        await look_again(page)
        shown = await page.of(SHOWN)
        assert_shows(shown, idle=True)
        assert shown["tables"]["refusals"][0][0] == "queue_full"
        assert int(shown["tiles"]["refused"][0]) == sum(shown["state"]["totals"]["refusals"].values())
        assert await page.of(PLACES) == places
        assert await page.of("document.activeElement.id") == "p-engines"
        assert page.complaints == []
        await picture(page, "4x1")
        offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await page.call("Network.emulateNetworkConditions", offline=True, **offline)
        await page.until("document.getElementById('stale').textContent")
        assert "old" in await page.of("document.querySelector('[role=alert]').textContent")
        assert await page.of(PLACES) == places
        await picture(page, "4x1-stale")
        await page.call("Network.emulateNetworkConditions", offline=False, **offline)
        await page.until("!document.getElementById('stale').textContent")


async def test_an_age_is_coloured_by_how_much_of_its_limit_it_is(tmp_path, chromium):
    async with scene(tmp_path, classes=4, engines=1) as before_it, tab(chromium, before_it.url) as page:
        await page.of("""window.edit = state => { const parts = [0.5, 0.51, 0.8, 0.81, 1, 0, 0, 0];
          state.pools.chat.lines.forEach((line, i) => { line.wait_s_max = 100; line.requests = parts[i] ? 1 : 0;
            line.oldest_age_s = 100 * parts[i]; }); }, 0""")
        await look_again(page)
        tones = """[...document.querySelectorAll("#lines tr")].slice(0, 5).map(row =>
          ["warn", "bad"].filter(tone => row.querySelector(".bar").classList.contains(tone)).join())"""
        assert await page.of(tones) == ["bad", "bad", "warn", "warn", ""]
        bar = "getComputedStyle(document.querySelector('#lines tr:nth-child({}) .bar i')).backgroundColor"
        assert len({await page.of(bar.format(row)) for row in (1, 3, 5)}) == 3
        assert await page.of("document.getElementById('t-oldest').className") == "bad"
        assert (
            await page.of("document.getElementById('in-short').textContent") == "2 lines are over 0.8 of their limit."
        )
        await page.of("window.edit = state => state.pools.chat.lines.forEach(line => { line.oldest_age_s = 0; }), 0")
        await look_again(page)
        assert await page.of("document.getElementById('t-oldest').className") == ""
        assert "No line is near" in await page.of("document.getElementById('in-short').textContent")


async def test_what_happened_before_it_was_opened_is_shown_and_a_gateway_that_started_anew_begins_at_nothing(
    tmp_path, chromium
):
    async with scene(tmp_path, classes=2, engines=1) as before_it:
        for _ in range(3):
            await before_it.gateway.ask("/v1/elsewhere")
        async with tab(chromium, before_it.url) as page:
            (row,) = (await page.of(SHOWN))["tables"]["refusals"]
            assert row[:4] == ["unknown_route", "3", "3", "none"]
            plot = "document.querySelector('#refusals polyline').getAttribute('points').split(' ').length"
            assert await page.of(plot) == BUCKETS - 1
            before_it.gateway.gateway.rooms.observer.history = History(before_it.gateway.gateway.rooms.clock.now)
            await look_again(page)
            assert (await page.of(SHOWN))["tables"]["refusals"][0][2] == "0"


async def test_all_of_it_is_reached_by_keyboard_and_named_for_screen_readers(tmp_path, chromium):
    async with scene(tmp_path, classes=2, engines=1) as before_it, tab(chromium, before_it.url) as page:
        stops = ["pause", "filter", "idle", "p-lines", "p-engines", "p-parts", "p-outcomes", "p-refusals", "p-shadow"]
        for stop in stops:
            await page.press("Tab")
            assert await page.of("document.activeElement.id") == stop
            assert await page.of("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        await page.of("document.getElementById('pause').focus()")
        await page.press(" ")
        assert await page.of("document.activeElement.getAttribute('aria-pressed')") == "true"
        shown_of = await page.of("document.getElementById('as-of').dataset.now")
        await before_it.gateway.ask("/v1/elsewhere")
        await page.press("Enter")
        await page.until(f"document.getElementById('as-of').dataset.now !== '{shown_of}'")
        assert ["unknown_route", "1"] in [row[:2] for row in (await page.of(SHOWN))["tables"]["refusals"]]
        nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        named = {}
        for node in nodes:
            if not node["ignored"]:
                named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value"))
        assert len(named["table"]) == len(stops) - 3
        assert all(named["table"])
        assert all(named["columnheader"])
        assert "class-00" in named["rowheader"]
        assert {"Who waits, and how long", "What the engines do", "Outcomes", "Refusals"} <= set(named["region"])
        assert {"search", "status", "alert", "main", "banner"} <= named.keys()
        levels = await page.of("[...document.querySelectorAll('h1, h2, h3')].map(each => each.tagName)")
        assert levels == ["H1", *["H2"] * (len(levels) - 1)]
        assert await page.of("[...document.querySelectorAll('table')].every(each => each.caption)")


CONTRAST = """(() => {
  const part = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = colour => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b); };
  const ground = each => { const own = getComputedStyle(each).backgroundColor;
    return own === "rgba(0, 0, 0, 0)" ? ground(each.parentElement) : own; };
  return Math.min(...[...document.querySelectorAll("h1, h2, p, dt, dd, th, td, button, strong, .dim")].map(each => {
    const [a, b] = [light(getComputedStyle(each).color), light(ground(each))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_read_in_light_and_dark_and_on_a_narrow_screen(tmp_path, chromium, scheme):
    async with scene(tmp_path, classes=2, engines=1) as before_it, tab(chromium, before_it.url) as page:
        await page.look_like(scheme, width=400, height=800)
        ground = await page.of("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        assert (sum(ground) > 3 * 128) == (scheme == "light")
        assert await page.of(CONTRAST) >= 4.5
        assert await page.of("document.documentElement.scrollWidth") == 400
        assert await page.of(f"{OPEN_PANELS}.every(each => each.getBoundingClientRect().right <= 400)")
        oldest = "document.querySelector('#lines td:nth-child(3)').getBoundingClientRect().left"
        assert await page.of(oldest) < 300, "what matters most is seen before one scrolls"
        await page.of("document.getElementById('p-engines').scrollLeft = 300")
        assert await page.of("document.querySelector('#engines th').getBoundingClientRect().left >= 0"), "names stay"
        await picture(page, f"2x1-narrow-{scheme}")


async def test_a_desk_of_1300_pixels_has_every_column(tmp_path, chromium):
    async with scene(tmp_path, classes=2, engines=1) as before_it, tab(chromium, before_it.url) as page:
        await page.look_like(width=1300)
        assert await page.of(f"{OPEN_PANELS}.every(each => each.scrollWidth <= each.clientWidth)")
        cut = "[...document.querySelectorAll('thead th')].filter(each => each.checkVisibility() && each.scrollWidth > each.clientWidth)"
        assert await page.of(f"{cut}.map(each => each.textContent)") == []
