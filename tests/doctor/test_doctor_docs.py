"""Every rule has its section in the documentation, with all four parts, and every documented code is a rule."""

from __future__ import annotations

import re
from pathlib import Path

from shoal.doctor import rules
from shoal.doctor.finding import RULES

rules.load_rules()
DOCS = Path(__file__).parents[2] / "docs"
PAGES = {"D": "directives", "G": "geometry", "S": "shell", "N": "network", "X": "gpu-env", "R": "signals"}
_SECTION = re.compile(r"^## ([A-Z]\d\d) (.+?)\n\n\*([\w ]+)\*\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def test_every_code_has_its_section_and_every_section_its_code() -> None:
    for letter, name in PAGES.items():
        sections = {match[1]: match for match in _SECTION.finditer((DOCS / "doctor" / f"{name}.md").read_text())}
        assert set(sections) == {code for code in RULES if code[0] == letter}
        for code, match in sections.items():
            assert (match[2], match[3]) == (RULES[code].title, RULES[code].severities)
            for part in ("Symptom", "Why", "Fix", "Source"):
                assert re.search(rf"- \*\*{part}\.\*\* \S", match[4]), f"{code} has no {part}"


def test_the_index_lists_every_code_once_with_a_link_that_leads_to_it() -> None:
    text = (DOCS / "doctor.md").read_text()
    links = re.findall(r"^\| \[([A-Z]\d\d)\]\(doctor/([\w-]+)\.md#(\S+)\) \| ([\w ]+) \| (.+) \|$", text, re.MULTILINE)
    assert sorted(link[0] for link in links) == sorted(RULES)
    for code, page, anchor, severity, title in links:
        assert page == PAGES[code[0]]
        assert (severity, title) == (RULES[code].severities, RULES[code].title)
        assert anchor == _anchor(f"{code} {title}")
    assert f"{len(RULES)} rules" in text


def _anchor(heading: str) -> str:
    """As the sites that show Markdown make it: lower case, marks gone, blanks as dashes."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
