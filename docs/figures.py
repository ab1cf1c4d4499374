"""Figures and tables from benchmarks/results/*.jsonl, for docs/tables.py."""

import dataclasses
import functools
import json
import pathlib

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks/results"
COLD = r"\* with compilation. "


@functools.cache
def records(file):
    lines = (RESULTS / f"{file}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def find(file, said="", before="", cuda="", **wanted):
    """Returns the newest record of a file with these values; None also matches an absent key.
    ``said`` is a part of the command, ``before`` a date, ``cuda`` the beginning of CUDA 12's
    version.
    """
    fits = [
        record
        for record in records(file)
        if all(record.get(key) == value for key, value in wanted.items())
        and said in record["command"]
        and (not before or record["date"] < before)
        and record["versions"].get("nvidia-cuda-runtime-cu12", "").startswith(cuda)
    ]
    if not fits:
        raise LookupError(f"{file}.jsonl has no record with {wanted}")
    return {"file": file, **max(fits, key=lambda record: record["date"])}


def number(value):
    """Returns the number with three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of figures.

    Attributes:
        head: the cells of the first row.
        rows: lists of cells: texts, or figures.
        scale: factor of the seconds; 1000 for milliseconds.
    """

    head: list
    rows: list
    scale: float = 1

    def text(self, name, here):
        lines = [self.head, ["---"] * len(self.head)]
        lines += [[self._cell(cell) for cell in row] for row in self.rows]
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        while "|  |" in table:
            table = table.replace("|  |", "| |")
        link = "../" * (len(here.parts) - 2) if here.parts[0] == "docs" else "docs/"
        cold = COLD if r"\*" in table else ""
        return f"\n{table}\n\n{cold}{self.origin()} ([records]({link}measurements.md#{name})).\n\n"

    def _cell(self, cell):
        return cell if isinstance(cell, str) else cell.text(self.scale)

    @property
    def records(self):
        cells = (cell for row in self.rows for cell in row if not isinstance(cell, str))
        return [record for cell in cells for record in cell.records]

    def origin(self):
        days = sorted({record["date"][:10] for record in self.records})
        machines = {
            record["machine"].replace(" x ", " × ").removesuffix(" 80GB HBM3")
            for record in self.records
        }
        when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        return f"Measured {when} on {', '.join(sorted(machines))}"


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number of a record in ``form``: {0} is this number, {1} the other record's, {2} their
    quotient."""

    record: dict
    other: dict | None = None
    key: str = "seconds"
    form: str = "{0}"

    @property
    def records(self):
        return [record for record in (self.record, self.other) if record]

    def text(self, scale=1):
        value = self.record[self.key]
        if self.key == "gemm_fraction":
            return f"{100 * value:.0f} %"
        cold = r"\*" if self.key == "seconds" and self.record.get("cold") else ""
        values = [number(value * scale) + cold]
        if self.other:
            values.append(number(self.other[self.key] * scale))
            values.append(f"{self.other[self.key] / value:.1f}")
        return self.form.format(*values, iterations=self.record.get("iterations"))


@dataclasses.dataclass(frozen=True)
class Part:
    """One of the times of a record that has several."""

    record: dict
    name: str

    @property
    def records(self):
        return [self.record]

    def text(self, scale=1):
        return number(self.record["seconds"][self.name] * scale)
