"""The generated reference pages, llms.txt and the site's navigation are those of this code and these pages."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def test_generated_pages_are_up_to_date() -> None:
    pages = runpy.run_path(str(DOCS / "make_reference.py"))["pages"]()
    outdated = [name for name, text in pages.items() if (DOCS / name).read_text("utf-8") != text]
    assert not outdated, "accept the change: .venv/bin/python docs/make_reference.py"


def test_the_index_and_the_navigation_have_every_page() -> None:
    pages = {page.name for page in DOCS.glob("*.md")} - {"README.md"}
    index, nav = (DOCS / "README.md").read_text("utf-8"), (ROOT / "mkdocs.yml").read_text("utf-8")
    assert pages <= set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert pages <= set(re.findall(r": ([\w-]+\.md)$", nav, re.MULTILINE))
