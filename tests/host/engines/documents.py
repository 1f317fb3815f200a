"""Random engine configs as people and programs write them: any order, comments, dotted keys, inline tables."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

from hypothesis import strategies as st

WORDS = st.sampled_from(["a", "b-c", "d_e", "io.x.y", "10.0.0.1:5000", "docker.io", "with space", "ü", "x9"])
TEXTS = st.one_of(WORDS, st.text(st.characters(exclude_categories=("Cs", "Cc"), max_codepoint=0x2FF), max_size=12))
SCALARS = st.one_of(st.booleans(), st.integers(-5, 9999), st.floats(allow_nan=False, width=32), TEXTS)
VALUES = st.one_of(SCALARS, st.lists(TEXTS, max_size=3), st.lists(st.integers(0, 9), max_size=3))
TABLES = st.recursive(
    st.dictionaries(WORDS, VALUES, max_size=3),
    lambda inner: st.dictionaries(WORDS, st.one_of(VALUES, inner), max_size=4),
    max_leaves=10,
)


def options(binary: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={"SystemdCgroup": st.booleans(), "BinaryName": binary, "Root": st.just("/run/runc")}
    )


RUNTIME = st.fixed_dictionaries(
    {"runtime_type": st.sampled_from(["io.containerd.runc.v2", "io.containerd.kata.v2"])},
    optional={
        "options": options(st.sampled_from(["/usr/bin/runc", "crun"])),
        "container_annotations": st.lists(st.sampled_from(["a.b/*", "c"]), unique=True),
        "privileged_without_host_devices": st.booleans(),
    },
)
CRI = st.fixed_dictionaries(
    {},
    optional={
        "enable_cdi": st.booleans(),
        "cdi_spec_dirs": st.lists(st.sampled_from(["/etc/cdi", "/var/run/cdi", "/run/cdi", "/opt/cdi"]), unique=True),
        "enable_selinux": st.booleans(),
        "max_container_log_line_size": st.integers(1, 99999),
        "cni": st.fixed_dictionaries({"conf_dir": st.just("/etc/cni/other.d")}),
        "containerd": st.fixed_dictionaries(
            {},
            optional={
                "default_runtime_name": st.sampled_from(["runc", "crun", "kata"]),
                "runtimes": st.dictionaries(st.sampled_from(["runc", "crun", "kata", "nvidia", "x.y"]), RUNTIME, max_size=3),
            },
        ),
    },
)  # fmt: skip


@st.composite
def containerd_configs(draw: st.DrawFn, version: int | None, plugin: str) -> tuple[dict[str, Any], str]:
    """A config's data and its text. The default runtime, where one is named, is there."""
    data: dict[str, Any] = {} if version is None else {"version": version}
    if draw(st.booleans()):
        data["root"] = "/var/lib/containerd"
    if draw(st.booleans()):
        data["disabled_plugins"] = ["io.containerd.internal.v1.opt"]
    cri = draw(st.none() | CRI)
    if cri is not None:
        engine: Any = cri.get("containerd", {})
        name = engine.get("default_runtime_name")
        if name and name != "runc":
            engine.setdefault("runtimes", {}).setdefault(name, {"runtime_type": "io.containerd.runc.v2"})
        data["plugins"] = {plugin: cri}
    if draw(st.booleans()):
        data.setdefault("plugins", {})["io.containerd.internal.v1.restart"] = {"interval": "10s"}
    if draw(st.booleans()):
        data["timeouts"] = {"io.containerd.timeout.bolt.open": "0s", "io.containerd.timeout.shim.load": "5s"}
    return data, draw(toml_text(data))


@st.composite
def toml_documents(draw: st.DrawFn) -> tuple[dict[str, Any], str]:
    data = draw(TABLES)
    return data, draw(toml_text(data))


@st.composite
def toml_text(draw: st.DrawFn, data: dict[str, Any]) -> str:
    """One of the many texts that parse to the data."""
    root: list[str] = []
    sections: list[list[str]] = []
    _table(draw, (), data, root, sections)
    sections = draw(st.permutations(sections))
    newline = draw(st.sampled_from(["\n", "\n", "\n", "\r\n"]))
    lines = [*root, *(line for section in sections for line in section)]
    text = newline.join(lines) + draw(st.sampled_from(["", newline, newline * 2]) if lines else st.just(""))
    assert tomllib.loads(text) == data, text
    return text


def _table(
    draw: st.DrawFn, path: tuple[str, ...], data: dict[str, Any], body: list[str], sections: list[list[str]]
) -> None:
    indent = draw(st.sampled_from(["", "  ", "\t"]))
    for key, value in data.items():
        style = draw(st.sampled_from(["header", "header", "inline", "dotted"])) if isinstance(value, dict) else "pair"
        if style == "header":
            section: list[str] = [*_noise(draw)]
            start = len(section)
            section.append(f"{draw(st.sampled_from(['', '  ']))}[{_keys(draw, (*path, key))}]{_comment(draw)}")
            _table(draw, (*path, key), value, section, sections)
            plain = len(section) == start + 1
            if not (
                plain
                and any(isinstance(item, dict) for item in value.values())
                and _has_header(sections, (*path, key))
                and draw(st.booleans())
            ):
                sections.append(section)
        elif style == "dotted" and value:
            for inner, leaf in _leaves(value):
                body.extend(_noise(draw))
                body.append(f"{indent}{_keys(draw, (key, *inner))} = {_value(draw, leaf)}{_comment(draw)}")
        else:
            body.extend(_noise(draw))
            body.append(
                f"{indent}{_keys(draw, (key,))}{draw(st.sampled_from([' = ', '=']))}{_value(draw, value)}{_comment(draw)}"
            )


def _has_header(sections: list[list[str]], path: tuple[str, ...]) -> bool:
    """Whether a deeper header makes this table's own one superfluous."""
    for section in sections:
        header = next(line.strip() for line in section if line.strip().startswith("["))
        found = tomllib.loads(header.partition("#")[0] if "#" not in header.partition("]")[0] else header)
        names: list[str] = []
        while found:
            (name, found), *_ = found.items()
            names.append(name)
        if len(names) > len(path) and tuple(names[: len(path)]) == path:
            return True
    return False


def _leaves(data: dict[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    rows: list[tuple[tuple[str, ...], Any]] = []
    for key, value in data.items():
        if isinstance(value, dict) and value:
            rows.extend(((key, *inner), leaf) for inner, leaf in _leaves(value))
        else:
            rows.append(((key,), value))
    return rows


def _keys(draw: st.DrawFn, path: tuple[str, ...]) -> str:
    return draw(st.sampled_from([".", " . ", "."])).join(_key(draw, part) for part in path)


def _key(draw: st.DrawFn, key: str) -> str:
    forms = [json.dumps(key, ensure_ascii=False)]
    if "'" not in key:
        forms.append(f"'{key}'")
    if re.fullmatch(r"[A-Za-z0-9_-]+", key):
        forms += [key] * 4
    return draw(st.sampled_from(forms))


def _value(draw: st.DrawFn, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        forms = [json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")]
        if "'" not in value and "\x7f" not in value:
            forms += [f"'{value}'", f"'''{value}'''"]
        return draw(st.sampled_from(forms))
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        if value and draw(st.booleans()):
            inside = "".join(f"\n  {_value(draw, item)}, # x [{{" for item in value)
            return f"[{inside}\n]"
        return f"[{', '.join(_value(draw, item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(draw, key)} = {_value(draw, item)}" for key, item in value.items()) + "}"
    return str(value)


def _comment(draw: st.DrawFn) -> str:
    return draw(st.sampled_from(["", "", " # why [not] = 'this\"", "#x"]))


def _noise(draw: st.DrawFn) -> list[str]:
    return draw(st.sampled_from([[], [], [""], ["# a comment"], ["", '  # key = "value" # [table]']]))
