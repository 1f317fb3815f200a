"""The documentation's generated tables are current, and its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kgpu.base.remedy import is_command
from tools import reference_docs

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/kgpu/**/README.md")])


@pytest.mark.parametrize("tool", ["reference_docs.py", "answers.py", "explanations.py"])
def test_what_is_generated_is_current(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_generated_table_is_on_a_page_and_says_what_each_option_does() -> None:
    pages = "".join(
        page.read_text() for folder in reference_docs.FOLDERS for page in (ROOT / "docs" / folder).glob("*.md")
    )
    assert [name for name in reference_docs.GENERATED if f"<!-- generated: {name} -->" not in pages] == []
    tables = re.findall(r"<!-- generated: ([a-z-]+) -->\n(.*?)<!-- end -->", pages, flags=re.DOTALL)
    mute = [name for name, table in tables if table.startswith(("| flag", "| environment")) and "|  |" in table]
    assert mute == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert not missing
    parts = re.findall(r"\]\(([^)#:]*)#([^)]*)\)", page.read_text())
    there = {target: _headings(page.parent / target if target else page) for target, _ in parts}
    assert [f"{target}#{part}" for target, part in parts if part not in there[target]] == []


def expanded(text: str) -> list[str]:
    """The lines of unquoted here-documents in which the reader's own shell would replace something."""
    documents = re.findall(r"<<-?(\w+)[^\n]*\n(.*?)^\s*\1$", text, re.DOTALL | re.MULTILINE)
    return [line for _, body in documents for line in body.splitlines() if re.search(r"(?<!\\)(\$[\w({]|`)", line)]


def test_expansion_of_here_documents_is_seen() -> None:
    assert expanded("$ cat <<END\necho $HOME\nEND\n") == ["echo $HOME"]
    assert expanded("$ cat <<'END'\necho $HOME\nEND\n$ cat <<END\n\\$HOME 5$\nEND\n") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_manifest_that_is_pasted_reaches_the_cluster_as_it_stands_on_the_page(page: Path) -> None:
    assert expanded(page.read_text()) == []


def _headings(page: Path) -> set[str]:
    """The names by which a link finds a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


ANSWERS = sorted((ROOT / "docs" / "answers").glob("*.md"))


@pytest.mark.parametrize("page", ANSWERS, ids=lambda page: page.stem)
def test_the_steps_of_an_answer_are_as_the_doctor_writes_them_now(page: Path) -> None:
    """Commands stand alone, without comments, and drain nothing by force: else `tools/answers.py --lab` is due."""
    commands = [line.strip() for line in page.read_text().splitlines() if is_command(line.strip())]
    assert [one for one in commands if " # " in one or ("drain" in one and "--force" in one)] == []
