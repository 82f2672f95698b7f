"""What the workers share: how a book is read, and where they leave files for each other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyworker import Failed

#: Every worker must see this directory under the same name: one machine, or a shared file system.
DIRECTORY = Path(os.environ.get("WORD_COUNTS_DIR") or tempfile.gettempdir())


def book_lines(filename: str) -> Iterator[str]:
    """The book's lines; what makes it unreadable fails the step with words a user understands."""
    try:
        with open(filename, encoding="utf-8") as book:
            yield from book
    except OSError as error:
        raise Failed(f"the book {filename} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failed(f"the book {filename} is not a text in UTF-8: {error}") from error


def write_file(name: str, text: str) -> str:
    """Writes a file as a whole or not at all, also when the same message is worked on twice; gives its path."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = DIRECTORY / name
    with tempfile.NamedTemporaryFile("w", dir=DIRECTORY, encoding="utf-8", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
    return str(path)
