"""What servers said, as it may stand on a terminal: never as markup, never as commands to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text


def visible(text: str) -> str:
    """The text with each character that can't be printed written as its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def cell(text: str) -> Text:
    """A table's cell of just these words: rich would read square brackets as markup. Lines stay lines."""
    from rich.text import Text

    return Text("\n".join(visible(line) for line in text.split("\n")))
