"""Writes the tables in pages from benchmarks/results/*.jsonl.

    python docs/tables.py           # writes them
    python docs/tables.py --check   # prints differences, and exits with 1 if there are any
    python docs/tables.py --commands kept   # prints the commands behind the table kept

A table is between two comments in its page, and this program writes the text between them:

    <!-- table: four_gpus -->
    ...
    <!-- end of table -->

So is a figure in a sentence: ``<!-- figure: potrs_65536 -->0.513<!-- end -->``. A figure comes from
the newest record that fits. A table states when and on which machine its figures were measured.
docs/measurements.md, which this program writes too, has the files of its records.
"""

import argparse
import contextlib
import dataclasses
import functools
import pathlib
import re
import sys

from figures import Figure, Part, Table, find, records

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/**/*.md")
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.S)
FIGURE = re.compile(r"(<!-- figure: (\w+) -->).*?(<!-- end -->)", re.S)
OUT = "out of memory"


def dense(file, routine, n, ranks=4, backend="native", dtype="float64", other=None, **more):
    """Returns the figure of a record of benchmarks/run.py."""
    wanted = {"routine": routine, "n": n, "ranks": ranks, "backend": backend, "dtype": dtype}
    if routine == "potrs":
        wanted["nrhs"] = 1
    if file != "eigen_gpu":
        wanted["precision"] = None
    wanted["matrix"] = "uniform" if file == "general" else "dominant"
    return Figure(find(file, **{**wanted, **more}), other)


def jax(routine, n, dtype="float64", **more):
    return dense("gpu", routine, n, 1, "jax", dtype, **more)


def newest(*figures):
    """Returns the newest of the figures that have a record; each is made by a function."""
    found = []
    for figure in figures:
        with contextlib.suppress(LookupError):
            found.append(figure())
    return max(found, key=lambda figure: figure.record["date"])


def today(routine, n, ranks=4, dtype="float64", **more):
    """Returns the newest figure of gpu.jsonl and four_gpus.jsonl."""
    files = ("gpu", "four_gpus")
    return newest(
        *(lambda f=file: dense(f, routine, n, ranks, dtype=dtype, **more) for file in files)
    )


def eigen(n, ranks=4, vectors=True, dtype="float64"):
    def one(file, solver):
        return dense(file, "syevd", n, ranks, dtype=dtype, vectors=vectors, eigensolver=solver)

    return newest(lambda: one("eigen_gpu", "all"), lambda: one("four_gpus", "auto"))


H200 = {ranks: f"{ranks} x NVIDIA H200" for ranks in (1, 2, 4, 8)}
ORDERS = (16384, 32768, 65536, 131072)


def readme():
    def line(title, *cells):
        return [title, *cells]

    return Table(
        ["", *(f"n = {ORDERS[0]}" if n == ORDERS[0] else str(n) for n in ORDERS)],
        [
            line("`potrs`", *(today("potrs", n) for n in ORDERS)),
            line("JAX on one GPU", *(jax("potrs", n) for n in ORDERS[:3]), OUT),
            line("`syevd`, with eigenvectors", *(eigen(n) for n in ORDERS[:3]), ""),
            line("JAX on one GPU", *(jax("syevd", n, vectors=True) for n in ORDERS[:2]), OUT, OUT),
        ],
    )


def beside(routine, n, dtype="float64", form="{0} ({2})"):
    """Returns four GPUs' time, and how many times longer JAX takes on one."""
    other = jax(routine, n, dtype).record
    return dataclasses.replace(today(routine, n, dtype=dtype, other=other), form=form)


def four_gpus():
    rows = []
    for routine, dtype, last in (
        ("potrs", "float64", 131072), ("potrs", "complex128", 0),
        ("potri", "float64", 65536), ("potri", "complex128", 0),
    ):  # fmt: skip
        cells = []
        for n in ORDERS:
            if n > last and n != 32768:
                cells.append("")
            elif n == 131072:
                cells.append(today(routine, n, dtype=dtype))
            else:
                cells.append(beside(routine, n, dtype))
        rows.append([f"`{routine}` {dtype}", *cells])
    vectors = {n: jax("syevd", n, vectors=True).record for n in ORDERS[:2]}
    both = "{0} ({2})"
    rows.append([
        "`syevd` float64, with eigenvectors",
        *(dataclasses.replace(eigen(n), other=vectors[n], form=both) for n in ORDERS[:2]),
        eigen(65536), "",
    ])  # fmt: skip
    rows.append(["`syevd` float64, eigenvalues", *(eigen(n, vectors=False) for n in ORDERS)])
    rows.append(
        [
            "`syevd` float32, with eigenvectors",
            *(eigen(n, dtype="float32") for n in ORDERS[:2]),
            "",
            "",
        ]
    )
    rows.append(
        [
            "`syevd` complex128, with eigenvectors",
            *(eigen(n, dtype="complex128") for n in ORDERS[:2]),
            "",
            "",
        ]
    )
    return Table(["", *map(str, ORDERS)], rows)


def end_to_end():
    """Compares the engine's rate on four GPUs with the rate of products, and with cuSOLVERMg."""
    rows = []
    for routine, dtype, orders, precision in (
        ("potrs", "float64", ORDERS, None), ("potrs", "float32", (131072,), "tf32"),
        ("potrs", "complex128", (32768,), None),
        ("potri", "float64", ORDERS[1:3], None), ("potri", "complex128", (32768,), None),
    ):  # fmt: skip
        for n in orders:
            ours = dense("gpu", routine, n, dtype=dtype, precision=precision)
            theirs = ""
            if routine == "potrs" and precision is None:
                theirs = dense("gpu", routine, n, 4, "cusolvermg", dtype)
            title = f"`{routine}` {dtype}" + (f", `{precision}`" if precision else "")
            rates = (dataclasses.replace(ours, key=key) for key in ("tflops", "gemm_fraction"))
            rows.append([title, str(n), ours, *rates, theirs])
    return Table(["", "n", "native", "TFLOP/s", "of GEMM", "cuSOLVERMg"], rows)


def small_several():
    """Returns times of small matrices on several GPUs, from the run that compared them."""
    rows = []
    for routine in ("potrs", "potri"):
        for n in (256, 8192):
            cases = (("jax", 1), ("jitted", 1), ("jitted", 2), ("jitted", 4), ("eager", 4))
            cells = [
                Figure(
                    find("small", "--limit 380", routine=routine, n=n, kind=kind, ranks=ranks,
                         dtype="float64")
                )
                for kind, ranks in cases
            ]  # fmt: skip
            rows.append([f"`{routine}`", str(n), *cells])
    head = ["", "n", "JAX, 1 GPU", "jitted, 1 GPU", "2", "4", "eager, 4"]
    return Table(head, rows, scale=1000)


def scaling():
    orders = (8192, *ORDERS)
    rows = []
    for ranks in (1, 4, 8):
        cells = []
        for n in orders:
            if ranks == 1 and n in (8192, 131072):
                cells.append(OUT if n == 131072 else jitted("potrs", n, machine=H200[1]))
            else:
                cells.append(today("potrs", n, ranks))
        rows.append([f"`potrs`, {ranks} GPU{'s' * (ranks > 1)}", *cells])
    rows.append(["`potri`, 1 GPU", "", *(dense("gpu", "potri", n, 1) for n in ORDERS[:2]), "", ""])
    rows.append(["`potri`, 4 GPUs", *(today("potri", n) for n in orders[:4]), ""])
    rows.append(
        ["`potri`, 8 GPUs", "", "", *(dense("gpu", "potri", n, 8) for n in ORDERS[1:3]), ""]
    )
    return Table(["float64", *map(str, orders)], rows)


def two_gpus():
    """Compares one and two GPUs in one run."""

    def run(routine, n, **more):
        return [
            Figure(find("two_gpus", routine=routine, n=n, ranks=ranks, **more)) for ranks in (1, 2)
        ]

    double, values = {"dtype": "float64"}, {"dtype": "float64", "vectors": False}
    shown: list[tuple[str, str, tuple[int, ...], dict]] = [
        ("`potrs`", "potrs", (8192, 32768, 65536), double),
        ("`potrs`, float32", "potrs", (32768,), {"dtype": "float32"}),
        ("`potri`", "potri", (32768,), double),
        ("`gesv`", "gesv", (32768, 65536), double),
        ("`getri`", "getri", (32768,), double),
        ("`syevd`, eigenvectors", "syevd", (8192, 16384), {**double, "vectors": True}),
        ("`syevd`, eigenvalues", "syevd", (16384,), values),
    ]
    rows = [
        [title, str(n), *run(routine, n, **more)]
        for title, routine, orders, more in shown
        for n in orders
    ]
    decomposed = {
        "r": ("`qr`, R alone", ((8192, 8192), (32768, 32768))),
        "qr": ("`qr`", ((16384, 16384), (200_000, 4096))),
        "least_squares": ("`least_squares`", ((200_000, 8192),)),
        "svd": ("`svd`", ((16384, 16384),)),
    }
    for routine, (title, shapes) in decomposed.items():
        for m, n in shapes:
            rows.append([title, f"{m} × {n}", *run(routine, n, m=m)])
    return Table(["float64 unless said", "n, or m × n", "1 GPU", "2 GPUs"], rows)


def small_record(routine, n, kind, dtype="float64", machine=H200[1], ranks=1):
    return find("small", routine=routine, n=n, kind=kind, dtype=dtype, machine=machine, ranks=ranks)


def jitted(routine, n, **more):
    return Figure(small_record(routine, n, "jitted", **more))


def small():
    orders = (100, 256, 1001, 2048, 4096, 8192)
    rows = []
    for routine in ("potrs", "potri", "syevd"):
        for kind in ("jitted", "jax"):
            title = f"`{routine}`, jitted" if kind == "jitted" else "JAX"
            rows.append([title, *(Figure(small_record(routine, n, kind)) for n in orders)])
    return Table(["", *map(str, orders)], rows, scale=1000)


def general():
    rows = []
    for n in (8192, 16384, 32768, 65536):
        rows.append(_gesv("float64", n))
    rows.append(_gesv("complex128", 32768))
    rows += [_gesv("float32", n) for n in (32768, 65536)]
    rows.append(["`getri` float64", "32768", dense("general", "getri", 32768, 1), ""])
    return Table(["", "n", "jaxmg", "JAX"], rows)


def _gesv(dtype, n):
    theirs = "" if dtype == "float32" else dense("general", "gesv", n, 1, "jax", dtype)
    ours = dense("general", "gesv", n, 1, dtype=dtype, T_A=None)
    return [f"`gesv` {dtype}", str(n), ours, theirs]


def decompositions():
    shown = {
        "r": ("`qr`, R alone", (1000, 16384, 32768)),
        "qr": ("`qr`", (1000, 4096, 16384, 32768, (200_000, 4096))),
        "least_squares": ("`least_squares`", ((100_000, 2048),)),
        "lstsq": ("`lstsq`", ((100_000, 2048),)),
        "svd": ("`svd`", (1000, 4096, 8192, 16384, (200_000, 4096))),
        "svdvals": ("`svdvals`", (1000, 4096, 8192, 16384)),
        "polar": ("`polar`", (1000, 4096, 16384)),
    }
    # Orders of other measurements, by function and kind; then the routines of cuSOLVER.
    squares = {"jax": (1000, 4096, 16384)}
    beside = {
        "r": squares,
        "qr": squares,
        "svd": {"jax": (1000, 2048, 4096, 8192), "cusolver": (1000, 2048, 4096, 8192, 16384)},
        "svdvals": {"jax": (4096, 8192), "cusolver": (4096, 8192)},
        "polar": {"jax": (4096, 8192), "cusolver": (4096, 8192, 16384)},
    }
    routines = {"svd": "gesvdp", "svdvals": "gesvd", "polar": "Xpolar"}
    rows = []
    for function, (title, shapes) in shown.items():
        for shape in shapes:
            m, n = shape if isinstance(shape, tuple) else (shape, shape)
            orders = beside.get(function, {})
            kinds = [("jaxmg", True)]
            kinds += [(kind, m == n and n in orders.get(kind, ())) for kind in ("jax", "cusolver")]
            found = [
                Figure(
                    find(
                        "decompositions", routine=function, m=m, n=n, dtype="float64",
                        kind=routines[function] if kind == "cusolver" else kind,
                    )
                ) if measured else ""
                for kind, measured in kinds
            ]  # fmt: skip
            rows.append([title, f"{m} × {n}", *found])
    return Table(["", "m × n", "jaxmg", "JAX", "cuSOLVER 12.4"], rows, scale=1000)


def single_precision():
    names = ("highest", None, "BF16_BF16_F32_X6", "BF16_BF16_F32_X3", "tf32")
    rows = []
    for routine, dtype, n in (
        ("potrs", "float32", 16384), ("potrs", "float32", 32768), ("potrs", "float32", 65536),
        ("potrs", "complex64", 32768),
    ):  # fmt: skip
        cells = [
            Figure(
                find("precision", routine=routine, dtype=dtype, n=n, precision=name, ranks=1,
                     machine=H200[1], matrix="dominant", backend="native")
            )
            for name in names
        ]  # fmt: skip
        rows.append([f"`{routine}` {dtype}", str(n), *cells])
    return Table(["", "n", *(f"`{name}`" for name in names)], rows)


def refined():
    rows = []
    names = ("tf32", "BF16_BF16_F32_X3", "F16_F16_F32_X3", "float32")
    for condition in (1e2, 1e4, 1e6, 1e8):
        cells = []
        for name in (None, *names):
            record = find(
                "refine",
                routine="potrs",
                n=65536,
                dtype="float64",
                nrhs=1,
                ranks=1,
                condition=condition,
                refine=name,
            )
            form = "{0}" if name is None else "{0} ({iterations})"
            cells.append(Figure(record, form=form))
        rows.append([f"1e{round(len(str(int(condition))) - 1)}", *cells])
    return Table(["condition", "plain", *(f"`{name}`" for name in names)], rows)


def kept():
    def cell(ranks, n, nrhs, routine="cho_solve"):
        where = {"n": n, "nrhs": nrhs, "ranks": ranks}
        return Figure(find("kept", routine=routine, dtype="float64", **where))

    rows = [
        [
            f"1, {ranks} GPU{'s' * (ranks > 1)}",
            *(
                cell(ranks, n, 1) if (ranks, n) not in ((1, 32768), (1, 131072)) else ""
                for n in ORDERS
            ),
        ]
        for ranks in (1, 2, 4)
    ]
    rows.append(["256, 4 GPUs", "", "", cell(4, 65536, 256), ""])
    for nrhs in (1, 4):
        cells = [cell(1, n, nrhs, "lu_solve") for n in (16384, 65536)]
        rows.append([f"{nrhs}, LU, 1 GPU", cells[0], "", cells[1], ""])
    return Table(["right-hand sides", *map(str, ORDERS)], rows, scale=1000)


def gradients():
    rows = []
    names = ("value and gradient", "value", "potrs", "potri")
    for n in (8192, 16384, 32768):
        record = find("gradient", routine="log_likelihood", n=n, ranks=2)
        rows.append([str(n), *(Part(record, name) for name in names)])
    return Table(["n", "value and gradient", "value alone", "`potrs`", "`potri`"], rows, scale=1000)


def processes():
    """Compares several processes on the GPUs of one host, by the labels of processes.jsonl."""
    labels = {
        "1x4": "1 × 4",
        "4x1": "4 × 1",
        "2x2": "2 × 2",
        "one": "1 × 2",
        "all": "2 × 1",
        "own": "2 × 1, own GPU seen alone",
        "tcp": "2 × 1, TCP",
    }
    rows = []
    for routine, n in (
        *(("potrs", n) for n in (4096, 16384, 32768, 65536, 131072)), ("potri", 32768),
    ):  # fmt: skip
        cells = []
        for label in labels:
            try:
                record = find(
                    "processes", before="2026-11-22T12", label=label, routine=routine, n=n
                )
                cells.append(Figure(record))
            except LookupError:
                cells.append("")
        rows.append([f"`{routine}` {n}", *cells])
    return Table(["processes × GPUs", *labels.values()], rows, scale=1000)


def cuda12():
    rows = []
    for routine, n, more in (
        ("potrs", 32768, {}), ("potrs", 65536, {}),
        ("potrs", 65536, {"backend": "cusolvermg"}), ("potri", 32768, {}),
        ("potrs", 32768, {"dtype": "float32", "precision": "tf32"}),
    ):  # fmt: skip
        cells = [dense("cuda12", routine, n, cuda=cuda, **more) for cuda in ("12.1.", "12.9.")]
        words = ", ".join(f"`{word}`" for word in more.values() if word != "float32")
        title = f"`{routine}` {more.get('dtype', 'float64')}" + (f", {words}" if words else "")
        rows.append([title, str(n), *cells, dense("gpu", routine, n, **more)])
    return Table(["", "n", "CUDA 12.1", "12.9", "13.0, another machine"], rows)


# Kinds of routines -> the names that records have.
FAMILIES = {
    "Cholesky": ("potrs", "potri", "cho_factor", "cho_solve"),
    "LU": ("gesv", "getri", "lu_factor", "lu_solve"),
    "QR": ("r", "qr", "geqrf", "least_squares", "lstsq"),
    "eigen- values": ("syevd", "eigh", "eigvalsh"),
    "SVD, polar": ("svd", "svdvals", "polar"),
    "pytrees": ("tree",),
}
# Files whose records are of jaxmg's functions, and kinds of records that are of others'.
RUNS = """
    gpu four_gpus two_gpus eigen_gpu general decompositions kept processes small precision refine
    cuda12 orders tiles""".split()
OTHERS = ("jax", "scipy", "peer", "getrs", "gesvd", "gesvdp", "Xpolar", "cusolvermg", "cusolvermp")
# The steps py311 to py314 of ci/cpu.sh.
CI = {"3.11": "0.6.2", "3.12": "0.11.2", "3.13, 3.14": "the newest"}


@dataclasses.dataclass(frozen=True)
class Day:
    """The day of a record, with the number of tests that passed."""

    record: dict

    @property
    def records(self):
        return [self.record]

    def text(self, scale=1):
        day = self.record["date"][5:10]
        return f"{day}: {self.record['passed']}" if "passed" in self.record else day


def ran():
    """Returns where each kind of routine ran last."""
    runs = [{"file": file, **record} for file in RUNS for record in records(file)]
    runs = [
        run
        for run in runs
        if "versions" in run
        and not {str(run.get(key)) for key in ("kind", "by", "backend")} & {*OTHERS}
    ]
    checks = [{"file": "checks", **record} for record in records("checks")]
    checks = [
        check
        for check in checks
        if check["result"] == "passed" and re.match("python|tests", check["step"])
    ]

    def last(found, machine):
        there = [record for record in found if record["machine"] == machine]
        return Day(max(there, key=lambda record: record["date"])) if there else ""

    rows = []
    for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        for ranks in (1, 2, 4, 8):
            machine = f"{ranks} x {gpu}"
            there = [run for run in runs if run["machine"] == machine]
            if not there:
                continue
            found = [
                [run for run in there if {run.get("routine"), run.get("kind")} & {*names}]
                for names in FAMILIES.values()
            ]
            jaxs = sorted({run["versions"]["jax"] for run in there if run["versions"].get("jax")})
            about = f"{', '.join(jaxs)}; {', '.join(cudas(there))}"
            cells = [last(family, machine) for family in found]
            title = f"{ranks} {gpu.split()[1]}"
            rows.append([title, about, *cells, last(checks, machine)])
    for python, jax_version in CI.items():
        cells = ["CI"] * len(FAMILIES)
        if jax_version == "0.6.2":
            cells[-1] = ""  # jaxmg.tree needs 0.10
        rows.append([f"CPU, Python {python}", jax_version, *cells, "all, in CI"])
    return Table(["devices", "JAX; CUDA", *FAMILIES, "tests passed"], rows)


def cudas(runs):
    """Returns the versions of CUDA of these records, as far as they say them."""
    found = set()
    for run in runs:
        versions = run["versions"]
        names = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
        full = next((versions[name] for name in names if name in versions), "")
        found.add(".".join(full.split(".")[:2]) or "13" * ("jax-cuda13-plugin" in versions))
    found = sorted(found - {""})
    return [cuda for cuda in found if not any(other.startswith(cuda + ".") for other in found)]


TABLES = {
    function.__name__: function
    for function in (
        readme, four_gpus, scaling, small, general, decompositions, single_precision, refined, kept,
        gradients, end_to_end, small_several, processes, cuda12, two_gpus, ran,
    )
}  # fmt: skip
FIGURES = {
    **{f"potrs_{n}": functools.partial(today, "potrs", n) for n in ORDERS},
    "potrs_one_gpu_65536": functools.partial(dense, "gpu", "potrs", 65536, 1),
    "gradient_32768": lambda: Part(
        find("gradient", routine="log_likelihood", n=32768, ranks=2), "value and gradient"
    ),
    **{f"potri_{n}": functools.partial(today, "potri", n) for n in ORDERS[:3]},
    **{f"syevd_{n}": functools.partial(eigen, n) for n in (8192, *ORDERS[:3])},
    "soap_by_jaxmg": lambda: Figure(find("four_gpus", kind="tree", step="soap", by="jaxmg")),
    "soap_by_jax": lambda: Figure(find("four_gpus", kind="tree", step="soap", by="jax")),
}


def sources():
    """Returns the text of docs/measurements.md: the files of each table's records."""
    text = ""
    for name, make in TABLES.items():
        files = ", ".join(f"`{file}.jsonl`" for file in sorted(commands(make())))
        text += f"\n## {name}\n\n{files}\n"
    return text + "\n"


def commands(table):
    """Returns the distinct commands of a table's records, by file."""
    by_file = {}
    for record in table.records:
        by_file.setdefault(record["file"], {})[record["command"]] = None
    return by_file


def rewritten(text, here):
    """Returns the page ``here`` with tables and figures from the records."""

    def table(match):
        name = match[2]
        new = sources() if name == "sources" else TABLES[name]().text(name, here)
        return f"{match[1]}{new}{match[3]}"

    text = TABLE.sub(table, text)
    return FIGURE.sub(lambda m: f"{m[1]}{FIGURES[m[2]]().text()}{m[3]}", text)


def pages():
    return sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})


def different(write=False):
    """Returns the names of the pages whose tables differ from the records; writes these pages if
    asked."""
    names = []
    for path in pages():
        text = path.read_text()
        name = path.relative_to(ROOT)
        new = rewritten(text, name)
        if new != text:
            names.append(str(name))
            if write:
                path.write_text(new)
    return names


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--commands", choices=TABLES, help="Print the commands behind this table.")
    arguments = parser.parse_args()
    if arguments.commands:
        for file, lines in sorted(commands(TABLES[arguments.commands]()).items()):
            print(f"{file}.jsonl", *lines, sep="\n    ")
        return 0
    check = arguments.check
    names = different(write=not check)
    for name in names:
        says = "differs from benchmarks/results: run docs/tables.py" if check else "written"
        print(f"{name}: {says}")
    return int(check and bool(names))


if __name__ == "__main__":
    sys.exit(main())
