"""The rules that the pages of docs/ follow. Prints each break of one, and fails."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

root = Path(__file__).resolve().parents[2]
LINES_MAX = 400
README_LINES_MAX = 120
faults = []


def fault(path, text):
    faults.append(f"{path.relative_to(root)}: {text}")


def tracked(*patterns):
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return [root / name for name in told.stdout.split("\n") if name and (root / name).is_file()]


def check_page(page):
    lines = page.read_text().split("\n")
    if len(lines) - 1 > LINES_MAX:
        fault(page, f"{len(lines) - 1} lines; at most {LINES_MAX}: split it")
    if not lines[0].startswith("# "):
        fault(page, "the first line is no title (# …)")
    if not re.match(r"\*For [^*]+[.:]\*", lines[2] if len(lines) > 2 else ""):
        fault(page, "the third line does not say whom the page is for: *For those who ….*")


def check_paths(file):
    """Pages that texts outside docs/ name, in code and in what the program prints, are there."""
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        return
    for name in re.findall(r"\bdocs/[A-Za-z0-9_/-]+\.(?:md|yaml|png)\b", text):
        if not (root / name).is_file():
            fault(file, f"there is no {name}")


def keys(value, prefix=""):
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from keys(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def shown(default):
    """What a cell says of a default: the text before any condition, without marks."""
    text = default.split(";")[0].strip()
    quoted = re.findall(r"`([^`]*)`", text)
    if quoted:
        return quoted
    number = re.fullmatch(r"(-?[\d,.]+)( MiB)?", text)
    return [str(int(number[1].replace(",", "")) * 2**20) if number[2] else number[1].replace(",", "")] if number else [text]


def written(value):
    """A default of config/default.yaml, as the page writes it."""
    if value in (None, [], {}):
        return "none"
    return "empty" if value == "" else str(value).lower() if isinstance(value, bool) else str(value)


def check_settings():
    """Every setting has its row with its default, and every row its setting."""
    page = root / "docs/reference/settings.md"
    rows = [re.split(r"(?<!\\)\|", line) for line in page.read_text().split("\n") if line.startswith("| `")]
    defaults = dict(keys(yaml.safe_load((root / "config/default.yaml").read_text())))
    sections = {name.split(".")[0] for name in defaults}
    told = set()
    for row in rows:
        names = re.findall(r"`([^`]+)`", row[1])
        told.update(names)
        known = [name for name in names if name in defaults]
        if known and (len(row) != 7 or not row[4].strip() or not row[5].strip()):
            fault(page, f"the row of {known[0]} does not say what it means, and when to change it")
        values = shown(row[2])
        for name, value in zip(known, values if len(values) >= len(known) else values * len(known)):
            if written(defaults[name]) != value:
                fault(page, f"the default of {name} is {written(defaults[name])}, not {value}")
    for name in sorted(defaults.keys() - told):
        fault(page, f"the setting {name} of config/default.yaml has no row")
    for name in sorted(told - defaults.keys()):
        if "." in name and name.split(".")[0] in sections:
            fault(page, f"config/default.yaml has no setting {name}")


def check_index(pages):
    """llms.txt names every page, but for the single decisions."""
    index = root / "docs/llms.txt"
    named = set(re.findall(r"\]\(([^)#]+)\)", index.read_text()))
    wanted = {str(page.relative_to(root / "docs")) for page in pages if page.parent.name != "decisions" or page.name == "README.md"}
    for name in sorted(wanted - named):
        fault(index, f"{name} is not in it")
    for name in sorted(named):
        if not (root / "docs" / name).is_file():
            fault(index, f"there is no {name}")


def check_decisions():
    """Each decision says what was decided, has a number of its own, and stands in the list of its subject."""
    folder = root / "docs/decisions"
    lists = {page.name: page.read_text() for page in folder.glob("in-*.md")}
    numbers = set()
    for page in sorted(folder.glob("[0-9]*.md")):
        text, number = page.read_text(), page.name[:4]
        if "**Decision.** " not in text or not text.startswith(f"# {number}. "):
            fault(page, "it has no **Decision.**, or its title has another number")
        subject = re.search(r"Decided \d{4}-\d\d-\d\d, in \[[^]]+\]\((in-[a-z-]+\.md)\)", text)
        if not subject or f"({page.name})" not in lists.get(subject[1], ""):
            fault(page, "it has no date, or is not in the list of its subject")
        if number in numbers:
            fault(page, "another decision has this number")
        numbers.add(number)
    index = (folder / "README.md").read_text()
    for name in lists:
        if f"({name})" not in index:
            fault(folder / name, "docs/decisions/README.md does not name it")


def main():
    pages = tracked("docs/*.md")
    for page in pages:
        check_page(page)
    for file in tracked():
        if not file.is_relative_to(root / "page/vendor"):
            check_paths(file)
    readme = root / "README.md"
    if len(readme.read_text().splitlines()) > README_LINES_MAX:
        fault(readme, f"more than {README_LINES_MAX} lines: it is an entrance, the pages are in docs/")
    check_settings()
    check_decisions()
    check_index(pages)
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(pages)} pages")


main()
