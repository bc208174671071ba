"""Markdown tables, pictures and charts as one HTML file that needs nothing else, light or dark. Knows no meanings."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

_ARMS = ("#0060a8", "#b84a00", "#00745a", "#8a3f94", "#5f6a00", "#a3003c", "#3f5bd6", "#6b4a2b")
_ARMS_DARK = ("#6db7ff", "#ff9a52", "#3fd6ad", "#e29bec", "#c6d34a", "#ff7fa6", "#9fb0ff", "#d9b08c")
_ENDS = (
    "#2e7d4f", "#d9a400", "#5b7fa6", "#e0702a", "#b5541c", "#8d5fa8", "#9aa3ad", "#b3202e", "#4d535b", "#c9ced4",
)  # fmt: skip
_ENDS_DARK = (
    "#4fb37a", "#e8bc33", "#7fa6d1", "#f0935a", "#d07a48", "#b48bd0", "#8b949e", "#f0616d", "#c3c9d1", "#5a616b",
)  # fmt: skip
_DASHES = ("none", "7 3", "2 3", "9 3 2 3")

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --faint: #56606e; --rule: #d7dce5; --ground: #ffffff;
  --raised: #f3f5f9; --good: #1e6b40; --bad: #a31422; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --faint: #a5aebb; --rule: #3a424e; --ground: #14181e;
  --raised: #1e242c; --good: #63c98f; --bad: #ff8a93; } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink);
  background: var(--ground); }
h1 { line-height: 1.2; } h2 { margin-top: 2.2rem; } p { max-width: 62rem; }
.scroll { overflow-x: auto; } .scroll:focus-visible { outline: 2px solid var(--faint); }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--rule); padding: .3rem .6rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } pre { background: var(--raised); padding: .8rem; overflow-x: auto; }
.verdict { border-left: .4rem solid var(--good); background: var(--raised); padding: .6rem 1rem; }
.verdict.invalid { border-color: var(--bad); } .verdict strong { font-size: 1.1rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-size: 13px; font-weight: 600; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; font-size: 13px; }
.key { width: 26px; height: 10px; margin-right: .4rem; }
.chart { width: 100%; height: auto; } .chart text { fill: var(--faint); font: 11px system-ui, sans-serif; }
.chart .label { fill: var(--ink); font-size: 12px; }
.grid { stroke: var(--rule); stroke-width: .7; } .axis { stroke: var(--faint); fill: none; }
.line { fill: none; stroke-width: 2; stroke: currentColor; }
.line.whisker.whisker { stroke-width: 1.2; stroke-dasharray: none; }
.mark { fill: currentColor; } .bar { fill: currentColor; stroke: var(--ground); stroke-width: .8; }
"""


def document(title: str, body: str) -> str:
    """One file: no script, nothing loaded."""
    head = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    return f"{head}<style>{_STYLE}{_colours()}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"


def page(title: str, said: Sequence[str], picture: bytes, markdown: str, commands: Sequence[str]) -> str:
    """said: sentences under the title; markdown: headings, sentences and tables, as `gateway bench` prints them."""
    image = base64.b64encode(picture).decode("ascii")
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p>{html.escape(sentence)}</p>" for sentence in said),
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,{image}">',
        "<h2>Tables</h2>",
        blocks(markdown),
        "<h2>To repeat it</h2>",
        f"<pre>{html.escape(chr(10).join(commands))}</pre>",
    ]
    return document(title, "\n".join(parts))


def blocks(markdown: str) -> str:
    """Headings, lists, sentences and tables, as this package writes them."""
    return "\n".join(_block(block) for block in markdown.split("\n\n") if block.strip())


def _block(text: str) -> str:
    for mark, tag in (("### ", "h3"), ("## ", "h2")):
        if text.startswith(mark):
            return f"<{tag}>{html.escape(text.removeprefix(mark))}</{tag}>"
    if text.startswith("- "):
        items = (f"<li>{html.escape(line.removeprefix('- '))}</li>" for line in text.splitlines())
        return f"<ul>{''.join(items)}</ul>"
    if not text.startswith("|"):
        return f"<p>{html.escape(text)}</p>"
    head, _, *rows = text.splitlines()
    body = "\n".join(_row(row, "td") for row in rows)
    # A wide table scrolls by itself, and by the keyboard too.
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="table"><table>\n'
        f"<thead>{_row(head, 'th')}</thead>\n<tbody>{body}</tbody>\n</table></div>"
    )


def _row(line: str, tag: str) -> str:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    scope = ' scope="col"' if tag == "th" else ""
    return "<tr>" + "".join(f"<{tag}{scope}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _colours() -> str:
    light = [*_of(_ARMS, 0), *_of(_ENDS, 20)]
    dark = [*_of(_ARMS_DARK, 0), *_of(_ENDS_DARK, 20)]
    dashes = [f".line.s{number} {{ stroke-dasharray: {_DASHES[number % len(_DASHES)]}; }}" for number in range(20)]
    return "\n".join([*light, *dashes, "@media (prefers-color-scheme: dark) {", *dark, "}"])


def _of(colours: Sequence[str], first: int) -> list[str]:
    """Arms are up to twenty: their colours begin again, with another dash."""
    number = 20 if first == 0 else len(colours)
    return [f".s{first + each} {{ color: {colours[each % len(colours)]}; }}" for each in range(number)]
