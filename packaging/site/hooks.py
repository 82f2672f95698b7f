"""What MkDocs cannot do by itself: links of pages to files of the repository outside docs/. Those files come with the site,
under source/: a page of Markdown as a page, a folder as a list of its files, anything else as it is. A link to what does not
exist fails the build. The pages of docs/ lie beside their HTML as Markdown too, for programs that read llms.txt."""

import posixpath
import re
import shutil
import subprocess
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
FENCES = re.compile(r"(^[ ]*```[\s\S]*?^[ ]*```)", re.M)
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)")


def repository_path(uri):
    return uri.removeprefix("source/") if uri.startswith("source/") else f"docs/{uri}"


def site_path(path):
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}/README.md" if (ROOT / path).is_dir() else f"source/{path}"


def resolved(path, target):
    """The file of the repository that a link of `path` means, and the anchor; None for one that leads elsewhere."""
    if re.match(r"[a-z]+:", target) or target.startswith("#"):
        return None
    name, _, anchor = target.partition("#")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), name)), anchor


def links(path, text):
    for part in FENCES.split(text)[::2]:
        for _, target in LINK.findall(part):
            if found := resolved(path, target):
                yield found[0]


def folder_page(path):
    told = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", path], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    told = [name for name in told if "/." not in name]
    return f"# {path}\n\n" + "".join(f"- [`{posixpath.relpath(name, path)}`]({posixpath.relpath(name, path)})\n" for name in told)


def on_files(files, config):
    waiting = [(repository_path(file.src_uri), file.content_string) for file in files.documentation_pages()]
    done = set()
    while waiting:
        page, text = waiting.pop()
        for path in links(page, text):
            if path in done or path.startswith("docs/"):
                continue
            done.add(path)
            if path.startswith("..") or not (ROOT / path).exists():
                raise PluginError(f"{page}: there is no {path}")
            uri = site_path(path)
            if (ROOT / path).is_dir() and not (ROOT / path / "README.md").exists():
                file = File.generated(config, uri, content=folder_page(path))
            else:
                file = File.generated(config, uri, abs_src_path=str(ROOT / uri.removeprefix("source/")))
            files.append(file)
            if file.is_documentation_page():
                waiting.append((repository_path(uri), file.content_string))
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    path = repository_path(here)

    def mended(match):
        found = resolved(path, match[2])
        if found is None:
            return match[0]
        target = posixpath.relpath(site_path(found[0]), posixpath.dirname(here) or ".")
        return f"{match[1]}({target}{'#' if found[1] else ''}{found[1]})"

    parts = FENCES.split(markdown)
    parts[::2] = [LINK.sub(mended, part) for part in parts[::2]]
    return "".join(parts)


def on_post_build(config):
    docs, site = Path(config.docs_dir), Path(config.site_dir)
    for page in docs.rglob("*.md"):
        to = site / page.relative_to(docs)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, to)
