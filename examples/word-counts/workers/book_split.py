"""book-split: finds the sections of a book, which are parted by empty lines, as ranges of lines."""

from pyworker import run
from shared import book_lines

WORDS_IN_NAME = 5


def split(message: dict) -> dict:
    sections = []
    start = None
    for at, line in enumerate([*book_lines(message["filename"]), ""]):
        if line.strip():
            if start is None:
                start, first = at, line
        elif start is not None:
            name = " ".join(first.split()[:WORDS_IN_NAME])
            sections.append({"section": f"{len(sections) + 1}. {name}", "start": start, "end": at})
            start = None
    return {"filename": message["filename"], "sections": sections}


run("book-split", split)
