"""Standard output, a terminal or a pipe."""

from __future__ import annotations

import unicodedata

from rich.console import Console


class Screen(Console):
    """Rich's console, for which a reader that left is no failure of the command: `main.py` ends it quietly."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def show(self, text: str) -> None:
        """Print text as it is. A terminal gets no control characters: a model could write escape sequences."""
        if self.is_terminal:
            text = "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")
        self.out(text, end="", highlight=False)
        self.file.flush()
