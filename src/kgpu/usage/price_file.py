"""Reads price lists, CSV or YAML, strictly: a row that can't be read is an error that says where, never a wrong price.

CSV has a line with the columns' names first. YAML has ``rows`` with the same names as keys, and ``currency``. Amounts
are plain numbers of the currency per hour; a text with a sign or a unit is refused, as nobody can say what it would
mean. A row without provider, region, pool, instanceType, capacityType and product is the default for what no other row
fits.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from kgpu.base.errors import ConfigError, first_of_several
from kgpu.formats.strict import Problems, Reader, Table, choice, raw, read_table, text
from kgpu.formats.usage import MILLION
from kgpu.formats.yaml import Document, Lines, Path, load_document
from kgpu.usage.nodes import CAPACITY_TYPES

USD: Final = "USD"
HOURS_PER_YEAR: Final = 8760
MAX_ROWS: Final = 100_000
_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?", re.ASCII)
_CURRENCY: Final = re.compile(r"[A-Z]{3}", re.ASCII)
_AMOUNTS: Final = ("perNodeHour", "perGpuHour", "capex")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRow:
    """A row: what it fits, "" for anything (``product`` may have ``*`` in it), and the price in millionths per hour: of
    a node or of a GPU, the other one is None. The discount is taken off already. ``line`` is where it stands.
    """

    provider: str = ""
    region: str = ""
    pool: str = ""
    instance_type: str = ""
    capacity_type: str = ""
    product: str = ""
    per_node_hour: int | None = None
    per_gpu_hour: int | None = None
    date: str = ""
    source: str = ""
    line: int = 0

    @property
    def fits(self) -> tuple[str, ...]:
        return self.provider, self.region, self.pool, self.instance_type, self.capacity_type, self.product

    @property
    def is_default(self) -> bool:
        return not any(self.fits)


@dataclass(frozen=True, slots=True)
class PriceList:
    """The rows of a file, and their currency."""

    rows: tuple[PriceRow, ...]
    currency: str = USD
    name: str = ""


MAX_BYTES: Final = 16 << 20


def read_prices(path: str) -> PriceList:
    """The list in a file. Raises ConfigError, and OSError as the system gives it."""
    with open(path, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} has more than {MAX_BYTES} bytes", "a price list", "give the right file")
    try:
        return parse(content.decode("utf-8"), source=path)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is no text in UTF-8: byte {error.start}", "a price list in UTF-8", "save it as UTF-8"
        ) from error


def parse(content: str, *, source: str) -> PriceList:
    """The list in a file's text: YAML where the file is called so, else CSV. Raises ConfigError."""
    is_yaml = source.lower().endswith((".yaml", ".yml", ".json"))
    document = load_document(content, source=source) if is_yaml else _csv_document(content, source)
    problems = Problems(source, document, _FILE)
    read = read_table(problems, (), document.value, _FILE)
    rows = read.get("rows") or []
    if not problems.found and not rows:
        problems.add(("rows",), "there are no prices in it", "a row for each price", "add rows, or leave --prices out")
    _check_rows(problems, rows, currency := read.get("currency", USD))
    if problems.found:
        raise first_of_several(problems.found)
    return PriceList(tuple(rows), currency, source)


def _check_rows(problems: Problems, rows: Iterable[PriceRow], currency: str) -> None:
    """Notes rows that fit the same, and a list in another currency that has no default."""
    seen: dict[tuple[str, ...], int] = {}
    for place, row in enumerate(rows):
        first = seen.setdefault(row.fits, row.line)
        if first != row.line:
            problems.add(
                ("rows", place), f"it fits what the row in line {first} fits", "one price for one thing",
                "remove one of the two, or say in which region or by which capacityType they differ",
            )  # fmt: skip
    if currency != USD and not any(row.is_default for row in rows) and not problems.found:
        problems.add(
            ("currency",), f"prices in {currency}, and no default", f"a default, as kgpu's own prices are in {USD}",
            "add a row with perGpuHour alone",
        )  # fmt: skip


def _csv_document(content: str, source: str) -> Document:
    """Lines of CSV as the document that YAML would have been; what is empty is left out."""
    if "\0" in content:
        raise ConfigError(f"{source}: there is a NUL in it", "a text file", "give a price list")
    reader = csv.reader(io.StringIO(content.removeprefix("\ufeff")), strict=True)
    lines, within = Lines(), Lines()
    items: list[dict[str, str]] = []
    lines.of["rows"], lines.within["rows"] = 1, within
    try:
        columns = [column.strip() for column in next(reader, [])]
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(columns):
                raise ConfigError(
                    f"{source}, line {reader.line_num}: {len(cells)} values for {len(columns)} columns",
                    "a value, or nothing, for each column", "correct the commas of that line",
                )  # fmt: skip
            within.of[len(items)] = reader.line_num
            items.append({column: cell.strip() for column, cell in zip(columns, cells, strict=True) if cell.strip()})
    except csv.Error as error:
        raise ConfigError(
            f"{source}, line {reader.line_num}: {error}", "CSV with commas", "correct that line"
        ) from error
    if len(set(columns)) < len(columns):
        raise ConfigError(f"{source}, line 1: a column is there twice", "each column once", "remove one of the two")
    known = [key.lower() for key in _ROW]
    if not any(column.lower() in known for column in columns):
        raise ConfigError(
            f"{source}, line 1: there are no columns of prices", f"the names of columns first: {', '.join(_ROW)}",
            "add that line; YAML is read from a file that ends in .yaml",
        )  # fmt: skip
    return Document({"rows": items}, 1, lines)


def _rows(problems: Problems, path: Path, value: Any) -> list[PriceRow] | None:
    if not isinstance(value, list):
        problems.add(path, f"{raw(value)} is no list", "a list of rows")
        return None
    if len(value) > MAX_ROWS:
        problems.add(path, f"{len(value)} rows", f"at most {MAX_ROWS}")
        return None
    found = (_row(problems, (*path, place), item) for place, item in enumerate(value))
    return [row for row in found if row is not None]


def _row(problems: Problems, path: Path, item: Any) -> PriceRow | None:
    before = len(problems.found)
    cells = read_table(problems, path, item, _ROW)
    if len(problems.found) > before:
        return None
    given = [name for name in _AMOUNTS if name in cells]
    if len(given) != 1:
        said = f"both {given[0]} and {given[1]}" if given else "no price"
        problems.add(path, said, f"one of {', '.join(_AMOUNTS)}", "give the one that you pay")
        return None
    if ("capex" in cells) != ("years" in cells):
        problems.add(
            path, "capex and years are for each other", "what a node has cost, and over how many years it counts"
        )
        return None
    keep = 1 - cells.get("discount", Decimal(0))
    node, gpu = cells.get("perNodeHour"), cells.get("perGpuHour")
    if "capex" in cells:
        node = cells["capex"] / (cells["years"] * HOURS_PER_YEAR)
    return PriceRow(
        provider=cells.get("provider", ""), region=cells.get("region", ""), pool=cells.get("pool", ""),
        instance_type=cells.get("instanceType", ""), capacity_type=cells.get("capacityType", ""),
        product=cells.get("product", ""), per_node_hour=None if node is None else _micro(node * keep),
        per_gpu_hour=None if gpu is None else _micro(gpu * keep), date=cells.get("date", ""),
        source=cells.get("source", ""), line=problems.document.line(path),
    )  # fmt: skip


def _micro(amount: Decimal) -> int:
    return round(amount * MILLION)


def _number(expected: str, *, most: int | None = None, least: int = 0) -> Reader:
    """A reader of a plain number above ``least`` or equal, and up to ``most``."""

    def read(problems: Problems, path: Path, value: Any) -> Decimal | None:
        shown = "" if isinstance(value, bool) else str(value).strip()
        if not _NUMBER.fullmatch(shown):
            problems.add(path, f"{raw(value)} is no plain number", expected, "leave out signs, units and separators")
            return None
        found = Decimal(shown)
        if found < least or (most is not None and found > most):
            problems.add(path, f"{shown} is out of range", expected)
            return None
        return found

    return read


def _date(problems: Problems, path: Path, value: Any) -> str | None:
    try:
        return dt.date.fromisoformat(str(value)).isoformat()
    except ValueError:
        problems.add(path, f"{raw(value)} is no date", "a date such as 2026-07-20")
        return None


def _currency(problems: Problems, path: Path, value: Any) -> str | None:
    if isinstance(value, str) and _CURRENCY.fullmatch(value):
        return value
    problems.add(path, f"{raw(value)} is no currency", "a code of three capitals, such as USD or EUR")
    return None


_PER_HOUR: Final = _number("an amount of the file's currency per hour, such as 3.06")
_ROW: Final[Table] = {
    "provider": text, "region": text, "pool": text, "instanceType": text,
    "capacityType": choice("unknown capacityType ", *CAPACITY_TYPES), "product": text,
    "perNodeHour": _PER_HOUR, "perGpuHour": _PER_HOUR,
    "discount": _number("a part of 1: 0.3 is 30 percent off", most=1), "date": _date, "source": text,
    "capex": _number("what a node has cost, such as 250000"),
    "years": _number("years from 1 to 30", least=1, most=30),
}  # fmt: skip
_FILE: Final[Mapping[str, Any]] = {"currency": _currency, "rows": _rows}
