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


def table(page, begin):
    """The first cell of each row of the table that begins with this line."""
    text = page.read_text().split(begin + "\n|---|---|\n", 1)
    if len(text) < 2:
        fault(page, f"there is no table that begins with {begin}")
        return []
    rows = text[1].split("\n\n", 1)[0].split("\n")
    return [re.split(r"(?<!\\)\|", row)[1] for row in rows]


def check_commands():
    """The overview of commands names each command that the program has, and no other, nor an option that it lacks."""
    page = root / "docs/reference/command-line.md"
    made = (root / "docs/reference/commands.md").read_text()
    common, each = made.split("## Each command")
    words = set(re.findall(r"^\| `(?:-\w, )?(--[\w-]+)", common, re.M))
    options, name = {}, None
    for row in each.split("\n"):
        if command := re.match(r"\| \*\*`([\w -]+)`\*\* \|(.*)", row):
            name = command[1]
            options[name] = words & set(re.findall(r"`(--[\w-]+)`", command[2]))
        elif name and (option := re.match(r"\| `(?:-\w, )?(--[\w-]+)", row)):
            options[name].add(option[1])
    told = set()
    for cell in table(page, "| command | |"):
        for written in re.findall(r"`([^`]+)`", cell):
            name = next((name for name in sorted(options, key=len, reverse=True) if f"{written} ".startswith(f"{name} ")), None)
            group = written.split()[0]
            told.add(group)
            name = name or next((group for known in options if known.startswith(f"{group} ")), None)
            if not name:
                fault(page, f"there is no command `{written}`")
                continue
            taken = set().union(*(taken for known, taken in options.items() if known == name or known.startswith(f"{name} ")))
            for option in re.findall(r"--[\w-]+", written):
                if option not in taken:
                    fault(page, f"`{name}` has no option {option}")
    for group in sorted({name.split()[0] for name in options} - told):
        fault(page, f"the overview has no row for the command `{group}`")


def check_calls():
    """The overview of the API names each call that the program answers, and no other, nor a parameter that it lacks."""
    page = root / "docs/reference/http-api.md"
    made = (root / "docs/reference/http-api-calls.md").read_text()
    calls = re.findall(r"^\| `([A-Z]+) (\S+)` \| .* \| (.*) \|$", made, re.M)
    told = set()
    for cell in table(page, "| call | answer |"):
        for written in re.findall(r"`([^`]+)`", cell):
            method, _, target = written.partition(" ")
            path, _, query = target.partition("?")
            pattern = re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))
            matching = [call for call in calls if call[0] == method and pattern.fullmatch(call[1])]
            if not matching:
                fault(page, f"there is no call `{written}`")
            told.update(call[:2] for call in matching)
            for parameter in re.findall(r"(?:^|&)(\w+)", query):
                # That of readiness is not in /openapi.json.
                if path != "/readyz" and not any(f"`{parameter}`" in call[2] for call in matching):
                    fault(page, f"`{method} {path}` has no parameter {parameter}")
    for method, path, _ in calls:
        if (method, path) not in told:
            fault(page, f"the overview has no row for `{method} {path}`")


def check_files():
    """Files of the project that pages name in code are there. Decisions tell of what was."""
    tops = {path.relative_to(root).parts[0] for path in tracked() if path.parent != root}
    named = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, sorted(tops)))})(?:/[\w.-]+)+(?![\w/*…{{-])")
    for page in tracked("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md"):
        if page.parent.name == "decisions":
            continue
        for code in re.findall(r"`([^`\n]+)`", page.read_text()):
            for name in named.findall(code):
                if not any((folder / name).exists() for folder in (root, root / "src", page.parent)):
                    fault(page, f"there is no {name}")


def check_attacks():
    """Each test that docs/reference/security.md names for an attack is there."""
    page = root / "docs/reference/security.md"
    text = page.read_text().split("## Attacks that are tests", 1)[1].split("\n## ", 1)[0]
    places = [root / "tests/fast", root / "tests/slow", root / "src", root / "src/daemon"]
    for row in (line for line in text.split("\n") if line.startswith("| ")):
        for name in re.findall(r"`([a-z_:]+)`", row.rstrip(" |").rsplit("|", 1)[1]):
            file = name.replace("::", "/") + ".rs"
            if not any((place / file).is_file() for place in places):
                fault(page, f"there is no test {name}")


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


def code(*folders):
    """The text of the sources, with the lines of a string that goes on joined."""
    texts = [file.read_text() for file in tracked(*folders) if file.suffix in (".rs", ".py", ".js", ".mjs")]
    return " ".join(re.sub(r"\\\n\s*", "", "\n".join(texts)).split())


def check_messages():
    """What a table of messages says that the program prints, it prints: each part between what differs."""
    page = root / "docs/how-to/find-what-is-wrong.md"
    program = code("src/*").replace('\\"', '"')
    for line in page.read_text().split("\n"):
        cell = line.split("|")[1] if line.startswith("|") else ""
        for message in re.findall(r"`([^`]+)`", cell):
            for part in re.split(r"…|<[a-z_.]+>|\bNAME\b|\b10s\b|\{.*\}|\"[a-z]+\"|^workflow_", message):
                if part.strip(" ,:.") not in program:
                    fault(page, f"the program has no message with: {part}")


def check_named_tests():
    """The tests that the pages of guarantees name are there."""
    tests = code("src/*", "tests/*")
    for page in tracked("docs/why/*.md"):
        for name in re.findall(r"`(?:\w+::)*([a-z0-9]+(?:_[a-z0-9]+){4,})`", page.read_text()):
            if f"fn {name}(" not in tests:
                fault(page, f"there is no test {name}")


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
    check_commands()
    check_calls()
    check_files()
    check_attacks()
    check_decisions()
    check_index(pages)
    check_messages()
    check_named_tests()
    if faults:
        sys.exit("\n".join(faults))
    print(f"{len(pages)} pages")


main()
