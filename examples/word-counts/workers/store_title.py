"""store-title: takes a book's first line that is not empty for its title."""

from pyworker import run
from shared import book_lines


def store_title(message: dict) -> dict:
    title = next((line.strip() for line in book_lines(message["filename"]) if line.strip()), "")
    return {"filename": message["filename"], "title": title}


run("store-title", store_title)
