"""Checks a table of word counts against a count of its own: character by character, over the book as a whole.

usage: check_counts.py BOOK TABLE
"""

from __future__ import annotations

import sys

SHOWN = 10


def main(book: str, table: str) -> int:
    expected = count(book)
    found = read(table)
    for word, number in sorted(found.items(), key=lambda row: (-row[1], row[0]))[:SHOWN]:
        print(f"  {number:>6}  {word}")
    wrong = sorted(word for word in {*expected, *found} if expected.get(word) != found.get(word))
    for word in wrong[:SHOWN]:
        print(f'wrong: "{word}" is {expected.get(word, 0)} times in the book, {found.get(word, 0)} times in the table')
    if wrong or not found:
        print(f"FAILED: {len(wrong)} of {len(expected)} words have a wrong count")
        return 1
    print(f"OK: {sum(found.values())} words, {len(found)} different, each counted right")
    return 0


def count(book: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    word = ""
    with open(book, encoding="utf-8") as file:
        text = file.read()
    for character in text + " ":
        if character.isalpha():
            word += character
        elif word:
            counts[word.lower()] = counts.get(word.lower(), 0) + 1
            word = ""
    return counts


def read(table: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    with open(table, encoding="utf-8") as file:
        for line in file:
            word, number = line.rstrip("\n").split("\t")
            counts[word] = counts.get(word, 0) + int(number)
    return counts


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
