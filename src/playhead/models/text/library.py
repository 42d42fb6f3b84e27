"""The tokenizers library, kept from failing in ways of its own.

It raises plain `Exception`, and panics of its Rust code arrive as a `BaseException` that no `except Exception` sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from playhead.errors import PlayheadError

PANIC = "PanicException"  # made at run time by the binding: there is nothing to import


@contextmanager
def library_failures(become: Callable[[str], PlayheadError], *, panics_only: bool = False) -> Iterator[None]:
    """Whatever the library raises inside becomes the error that `become` makes of its message.

    With `panics_only` its ordinary exceptions end the block and go no further: they are about the text, and a panic is
    about the tokenizer.
    """
    try:
        yield
    except PlayheadError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        if panics_only and isinstance(error, Exception):
            return
        raise become(f"{' '.join(str(error).split()):.200}") from None
