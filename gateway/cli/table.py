"""Plain text tables for terminals and logs.

Owns alignment: text to the left, numbers to the right, a dash for what is absent.
"""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | int | float | None


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Lines of equal columns, two spaces apart; every row has as many cells as the header."""
    texts = [list(header), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(text) for text in column) for column in zip(*texts, strict=True)]
    numeric = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(header))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in texts
    )


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:g}" if isinstance(cell, float) else str(cell)


def _is_number(cell: Cell) -> bool:
    return cell is None or not isinstance(cell, str)
