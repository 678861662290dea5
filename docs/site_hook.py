"""mkdocs calls these while it builds the site (mkdocs.yml): the pages stay as they are read on a code host.

Pages outside docs/ become pages of the site, fences lose the words that only tests/test_docs.py reads, lists get the
blank line that Python-Markdown wants, and every page is also there as plain Markdown, for llms.txt.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
#: Files outside docs/, and the names of their pages.
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "benchmarks/RESULTS.md": "results.md"}
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, name in OUTSIDE.items():
        text = (ROOT / source).read_text("utf-8").replace("](docs/", "](")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    for source, name in OUTSIDE.items():
        markdown = markdown.replace(f"](../{source}", f"]({name}")
    return "\n".join(_as_python_markdown(markdown.split("\n")))


def on_post_build(config: Any) -> None:
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in docs.rglob("*.md"):
        shutil.copy(page, site / page.relative_to(docs))


def _as_python_markdown(lines: list[str]) -> list[str]:
    found: list[str] = []
    fenced = in_list = False
    for line in lines:
        if line.startswith("```"):
            fenced, language = not fenced, re.match(r"```\w*", line)
            name = re.search(r"\bfile=(\S+)", line)
            line = (language[0] if language else "```") + (f' title="{name[1]}"' if name else "")
        elif not fenced:
            is_item = _ITEM.match(line) is not None
            if is_item and not in_list and found and found[-1].strip():
                found.append("")
            in_list = is_item or (in_list and (not line.strip() or line.startswith(" ")))
        found.append(line)
    return found
