"""Markdown tables and pictures as one HTML file that needs nothing else. Knows no meanings."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2330; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; }
th, td { border-bottom: 1px solid #d7dce5; padding: .3rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; } pre { background: #f3f5f9; padding: .8rem; overflow-x: auto; }
"""


def page(title: str, said: Sequence[str], picture: bytes, markdown: str, commands: Sequence[str]) -> str:
    """said: sentences under the title; markdown: headings, sentences and tables, as `gateway bench` prints them."""
    image = base64.b64encode(picture).decode("ascii")
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p>{html.escape(sentence)}</p>" for sentence in said),
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,{image}">',
        *(_block(block) for block in markdown.split("\n\n")),
        "<h2>To repeat it</h2>",
        f"<pre>{html.escape(chr(10).join(commands))}</pre>",
    ]
    head = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    return f"{head}<style>{_STYLE}</style>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"


def _block(text: str) -> str:
    if text.startswith("### "):
        return f"<h2>{html.escape(text.removeprefix('### '))}</h2>"
    if not text.startswith("|"):
        return f"<p>{html.escape(text)}</p>"
    head, _, *rows = text.splitlines()
    cells = [_row(head, "th"), *(_row(row, "td") for row in rows)]
    return "<table>\n" + "\n".join(cells) + "\n</table>"


def _row(line: str, tag: str) -> str:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
