"""Settings of the documentation site. `bin/docs` builds it with Sphinx."""
from __future__ import annotations

import posixpath
import re
from pathlib import Path

DOCS = Path(__file__).parent
project = "ocaffe"
author = "the authors of ocaffe"
project_copyright = author
release = re.search(r'__version__ = "([^"]+)"', (DOCS.parent / "ocaffe" / "__init__.py").read_text(encoding="utf-8"))[1]  # type: ignore[index]
extensions = ["myst_parser"]
exclude_patterns = ["charts"]
html_theme = "furo"
html_title = f"ocaffe {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {"footer_icons": []}
highlight_language = "none"  # most listings are shell sessions or tables of flags
smartquotes = False  # it would make a dash of the two in --flags
myst_heading_anchors = 3

PAGE = re.compile(r"(?<![\w/\[])(?<!\]\()docs/([\w/-]+\.md)")  # pages name each other by their paths in the tree


def link_pages(app: object, name: str, source: list[str]) -> None:
    """Make links with the titles of pages from paths such as docs/fit.md in the prose. Code keeps them as text."""
    folder = posixpath.dirname(name)

    def link(match: re.Match[str]) -> str:
        return f"[]({posixpath.relpath(match[1], folder or '.')})" if (DOCS / match[1]).exists() else match[0]

    source[0] = "\n".join(line if line.startswith("    ") else _outside_code(line, link) for line in source[0].split("\n"))


def _outside_code(line: str, link: object) -> str:
    parts = line.split("`")
    parts[::2] = [PAGE.sub(link, part) for part in parts[::2]]  # type: ignore[call-overload]
    return "`".join(parts)


def setup(app: object) -> None:
    app.connect("source-read", link_pages)  # type: ignore[attr-defined]
