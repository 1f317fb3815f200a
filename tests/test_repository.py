"""The repository keeps its own rules: documented modules, one place for names, tests beside sources, and
a README for every package that is not small."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import functools
import re
import subprocess
import sys
from pathlib import Path

from kgpu.formats import names

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "kgpu"
GENERATED = SOURCE / "kubelet" / "pb"
MODULES = sorted(path for path in SOURCE.rglob("*.py") if GENERATED not in path.parents)
PACKAGES = sorted({path.parent for path in MODULES})
# A docstring with something in it, perhaps below comments. To parse a thousand files for it took half a minute.
SAYS = re.compile(r'(?:#.*\n|\s*\n)*r?"""\s*[^\s"]')
SMALL = 10  # files that anybody looks through
NATIVE = sorted(path for path in (ROOT / "native").rglob("*.[ch]") if path.name != "kgpu_state.h")
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A key such as nvidia.com/gpu: one slash, no tag as images have. A longer text with spaces in it is for people.
NAMED = re.compile(
    r"(?:[\w.-]+\.)?(?:nvidia\.com|amd\.com|habana\.ai|kgpu\.dev|k8s-sigs\.io|node\.kubernetes\.io)/[^/:]+"
)
# The table's own values, except plain words, which mean other things elsewhere.
NAMES = {
    value
    for name, value in vars(names).items()
    if name.isupper() and isinstance(value, str) and re.search(r"[/_.]", value) and not value.startswith(".")
}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_module_says_what_it_is_for():
    mute = [relative(path) for path in [*MODULES, *TESTS] if not SAYS.match(path.read_text(encoding="utf-8"))]
    assert mute == [], "a module begins with what it is for and what it promises"


def test_a_module_that_does_not_say_it_is_found():
    quotes = '"' * 3
    for text in ("", f"{quotes}  {quotes}\nx = 1\n", "import os\n", f"x = {quotes}No.{quotes}\n", "# No.\n"):
        assert not SAYS.match(text), text
    for text in (f"{quotes}It does this.{quotes}\n", f"#!/usr/bin/python3\n# Licence.\n\nr{quotes}\n\\d{quotes}\n"):
        assert SAYS.match(text), text


def test_a_native_file_says_what_it_is_for():
    assert [relative(path) for path in NATIVE if not path.read_text(encoding="utf-8").startswith("/*")] == []


def named(readme: str) -> tuple[set[str], list[str]]:
    """The files that a README names, each in code marks, and its globs: ``mig*.py`` is all files that begin so."""
    marked = re.findall(r"`([^`\n]+)`", readme)
    files = {text for text in marked if re.fullmatch(r"\w+\.py", text)}
    return files, [text for text in marked if re.fullmatch(r"[a-z]\w+\*\.py", text)]


def rows(readme: str) -> list[str]:
    """What the first cells of its tables name: files, globs and folders, but none with a path before it."""
    cells = re.findall(r"^\| (`[^|]*) \|", readme, re.MULTILINE)
    return [text for cell in cells for text in re.findall(r"`([\w*]+(?:\.py|/))`", cell)]


def unnamed(package: Path) -> list[str]:
    """What of a package its README does not name; the README itself where there is none."""
    readme = package / "README.md"
    if not readme.exists():
        return ["README.md"]
    files, globs = named(readme.read_text(encoding="utf-8"))
    there = sorted(path.name for path in package.glob("*.py") if path.name != "__init__.py")
    return [name for name in there if name not in files and not any(fnmatch.fnmatchcase(name, one) for one in globs)]


def gone(package: Path) -> list[str]:
    """What the tables of its README name and it has not got."""
    readme = package / "README.md"
    found = rows(readme.read_text(encoding="utf-8")) if readme.exists() else []
    return [name for name in found if not any(package.glob(name.rstrip("/")))]


def test_a_package_that_is_not_small_names_each_of_its_modules():
    large = [package for package in PACKAGES if len([*package.glob("*.py")]) > SMALL]
    assert {relative(one): names for one in large if (names := unnamed(one))} == {}, "a row in the package's README"
    assert {relative(one): names for one in PACKAGES if (names := gone(one))} == {}, "a row of a file that is gone"


def test_a_module_without_a_row_and_a_row_without_a_module_are_found(tmp_path):
    for name in ("__init__.py", "plan.py", "mig_signs.py", "news.py"):
        (tmp_path / name).touch()
    assert unnamed(tmp_path) == ["README.md"]
    readme = tmp_path / "README.md"
    readme.write_text("| `plan.py`, `old.py` | |\n| `mig*.py`, `sub/` | |\nnews.py, `a/news.py`, `news`, `*.py`\n")
    assert unnamed(tmp_path) == ["news.py"]
    assert gone(tmp_path) == ["old.py", "sub/"]


def docstrings(tree: ast.Module) -> set[int]:
    """The ids of the constants that are docstrings."""
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            found.add(id(body[0].value))
    return found


def literals(path: Path) -> list[tuple[int, str]]:
    """(line, text) of every string literal that spells a name which belongs into kgpu.formats.names."""
    tree = tree_of(path)
    prose = docstrings(tree)
    return [
        (node.lineno, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in prose
        and " " not in node.value.strip()
        and (node.value in NAMES or NAMED.fullmatch(node.value))
    ]


def test_names_that_users_know_are_spelt_in_one_place():
    found = {relative(path): literals(path) for path in MODULES if path != SOURCE / "formats" / "names.py"}
    assert {path: spelt for path, spelt in found.items() if spelt} == {}


def test_the_check_for_names_finds_one(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(f'"""Doc of {names.GPU_RESOURCE}."""\nRESOURCE = "{names.GPU_RESOURCE}"\n')
    assert literals(file) == [(2, names.GPU_RESOURCE)]


def test_a_class_name_stands_for_one_thing():
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(relative(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def typed_by_msgspec(path: Path) -> list[int]:
    """Lines where msgspec itself is given a type to read values as."""
    reads = ("msgspec.convert", "msgspec.json.decode", "msgspec.json.Decoder")
    calls = (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call) and ast.unparse(node.func) in reads)
    return [
        call.lineno
        for call in calls
        if len(call.args) > 1
        or any(word.arg == "type" for word in call.keywords)
        or (call.args and ast.unparse(call.func) == "msgspec.json.Decoder")
    ]


def test_types_are_given_to_msgspec_in_one_place(tmp_path):
    """Two threads that read a type for the first time end the process: kgpu.base.typed says how."""
    found = {relative(path): typed_by_msgspec(path) for path in MODULES if path != SOURCE / "base" / "typed.py"}
    assert {path: lines for path, lines in found.items() if lines} == {}
    file = tmp_path / "module.py"
    file.write_text(
        "msgspec.convert(a, B)\nmsgspec.json.decode(a, type=B)\nmsgspec.json.Decoder(B)\nmsgspec.json.decode(a)"
    )
    assert typed_by_msgspec(file) == [1, 2, 3]


def test_every_folder_of_tests_has_a_folder_of_source():
    support = {"charts", "data", "golden", "native", "parity", "real", "samples", "seed_facts", "tools"}
    for folder in (
        path for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith((".", "_"))
    ):
        assert folder.name in support or (SOURCE / folder.name).is_dir(), relative(folder)


def test_the_generated_header_is_current():
    done = subprocess.run(
        [sys.executable, "-m", "kgpu.hw.simulator.schema"], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == (ROOT / "native" / "include" / "kgpu_state.h").read_text()


def test_layers_are_kept():
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout


def contract(name: str) -> dict[str, list[str]]:
    """The lists of one contract of ``.importlinter``, by their names."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / ".importlinter")
    return {key: value.split() for key, value in parser[f"importlinter:contract:{name}"].items()}


def uncovered(modules: list[str], expressions: list[str]) -> list[str]:
    """The modules that none of import-linter's expressions names: ``*`` is one package, ``**`` are some, the name of a
    package stands for all of it.
    """
    patterns = [
        re.escape(text).replace(r"\*\*", r"\w+(?:\.\w+)*").replace(r"\*", r"\w+") + r"(?:\.\w+)*"
        for text in expressions
    ]
    return [module for module in modules if not any(re.fullmatch(pattern, module) for pattern in patterns)]


def decides(path: Path) -> bool:
    """Whether a module decides, or holds what is decided on: a plan, a model, or a part of ``fit``."""
    return path.stem in {"plan", "model"} or path.stem.endswith("_plan") or path.parent == SOURCE / "fit"


def test_every_module_that_decides_is_held_to_be_pure():
    deciding = [
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        for path in MODULES
        if decides(path) and path.name != "__init__.py"
    ]
    assert len(deciding) > 40
    assert uncovered(deciding, contract("pure")["source_modules"]) == [], "a line in the contract `pure`"


# Which packages know what the others may not: a reader opens NVML, the kubelet's sockets speak gRPC, ...
KNOW = {"pynvml": {"hw"}, "grpclib": {"kubelet"}, "lightkube": {"kube"}, "vendors": {"hw"}}


def test_every_package_is_held_not_to_know_the_libraries_of_another_layer():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert len(packages) > 20
    for name, know in KNOW.items():
        listed = contract(name)["source_modules"]
        unlisted = uncovered([f"kgpu.{package}" for package in sorted(packages - know)], listed)
        assert unlisted == [], f"a line in the contract `{name}`"
        assert not {f"kgpu.{package}" for package in know} & {*listed}, name


def test_a_module_that_no_expression_names_is_found():
    modules = ["kgpu.a.plan", "kgpu.a.b.plan", "kgpu.plan", "kgpu.fit", "kgpu.fit.read", "kgpu.a.job_plan"]
    assert uncovered(modules, ["kgpu.**.plan", "kgpu.fit"]) == ["kgpu.plan", "kgpu.a.job_plan"]
    assert uncovered(modules, ["kgpu.*.plan"]) == ["kgpu.a.b.plan", *modules[2:]]


def test_no_bytecode_is_committed_and_the_package_is_typed():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=300).stdout.split()
    assert not [name for name in listed if name.endswith((".pyc", ".so", ".o"))]
    assert (SOURCE / "py.typed").exists()
