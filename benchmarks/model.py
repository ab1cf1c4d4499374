"""Predicts the time of potrf by a model of its critical path, with rates measured on H200.

    python benchmarks/model.py
    python benchmarks/model.py --grids

Prints the model and the records of results/ (gpu.jsonl, tiles.jsonl), the best tile width by the
model, and its predictions for more GPUs than were measured. float64, one right-hand side. With
--grids it prints tables in Markdown for 1 × P over nodes of eight GPUs, which is the engine's
layout, and for Pr × Pc, which the engine doesn't have. docs/model.md explains the model.
"""

import json
import math
import os
import pathlib
from typing import NamedTuple

import numpy as np
from absl import app, flags
from workspace import tile as tile_of

_GRIDS = flags.DEFINE_bool("grids", False, "one row of many GPUs, and grids of them, instead")

RESULTS = pathlib.Path(__file__).resolve().parent / "results"

# Measured on one H200, in float64 unless stated, from timelines of runs with nothing else on the
# GPU.
# Operations per second of trailing updates, at all GPUs' power limit; float32: large products.
UPDATE = {"float64": 51.5e12, "float32": 51.4e12}
NEXT = 51e12  # operations per second of the update of the next tile column, T deep
TILE = 0.5e-3 / 1024  # seconds per column of potrf of a diagonal tile
TILE_UPDATE = 0.1e-3  # seconds of the update of a diagonal tile, for any size
PIECE = 128  # columns of a panel that are sent at a time
PIECE_SECONDS, PIECE_ROW = 46e-6, 2.0e-9  # of a piece: fixed, and per row below the tile
PANEL = 60e12  # operations per second of a panel's products, which take additional time
WAITS = 0.1e-3  # between a panel and the next tile: events and launches
HOP = 14e-6  # latency of a copy from another GPU's copy engine, for any size
LINK = 350e9  # bytes per second of a copy between two GPUs
EXCHANGE = 340e9  # the same of the redistribution, out of the busiest GPU; moves are concurrent
# Seconds of the back substitution: per tile, and per column.
SUBSTITUTION, SUBSTITUTION_COLUMN = 60e-6, 0.09e-6
CALL = 1.3e-3  # Python, XLA and the ranks' rendezvous, for any size: fitted to small n
MEMORY = 143771 * 2**20  # bytes by nvidia-smi; sold as 141 GB

# Published: GPUs of a node that NVLink connects, and bytes per second of a 400 Gb/s port per GPU.
NODE, PORT = 8, 50e9
# Published by JAXMg: float32, by cuSOLVERMp on H200.
PUBLISHED_N, PUBLISHED_RANKS, PUBLISHED_SECONDS = 1499136, 64, 654

SIZE = {"float64": 8, "float32": 4}  # bytes of a number
WIDTHS = (128, 256, 512, 1024, 2048)
DEPTH = max(WIDTHS)  # columns of panels in one of the engine's updates


class Grid(NamedTuple):
    """Assigns tiles to `rows` × `columns` ranks cyclically, each tile column to a column of ranks.

    A panel is sent `across` to the other columns, and `down` a column; both in bytes per second.
    """

    rows: int
    columns: int
    across: float = LINK
    down: float = LINK

    @property
    def ranks(self):
        return self.rows * self.columns


def line(ranks, link=LINK):
    """Returns 1 × P, the engine's layout."""
    return Grid(1, ranks, link, link)


def factorization(n, grid, width, dtype="float64"):
    """Returns the seconds of potrf, the seconds of its updates, and the fraction of the steps in
    which the chain of panels takes longer than the concurrent update."""
    size = SIZE[dtype]
    m = np.arange(n - width, 0, -width)
    own = m / grid.rows  # rows of a panel that a rank solves
    update = m * m * width / (grid.ranks * UPDATE[dtype])
    panel = width / PIECE * (PIECE_SECONDS + PIECE_ROW * own) + own * width**2 / PANEL
    column = np.maximum(TILE * width, 2 * own * width**2 / NEXT)
    chain = TILE_UPDATE + column + panel + WAITS
    across, down = np.zeros(len(m)), np.zeros(len(m))
    if grid.columns > 1:
        chain += size * PIECE * own / grid.across
        across = size * width * own / grid.across
    if grid.rows > 1:
        # Sent down: the diagonal tile, for the panel; and the panel's tile that updates the next
        # tile column.
        hops = math.ceil(math.log2(grid.rows))
        chain += 2 * (WAITS + hops * (HOP + size * width**2 / grid.down))
        down = size * width * m / grid.columns / grid.down
    # Both directions over one kind of link share it.
    links = across + down if grid.across == grid.down else np.maximum(across, down)
    total = np.maximum(np.maximum(update, chain), links)
    return total.sum(), update.sum(), (chain > update).sum() / max(len(m), 1)


def redistribution(n, grid, dtype="float64"):
    """Returns the seconds in which the first rank, which sends most, sends all but its own share of
    nearly whole columns."""
    ranks = grid.ranks
    if ranks == 1:
        return 0.0
    given = SIZE[dtype] * n * n / ranks * (1 - 1 / ranks) * (1 - 1 / (2 * ranks))
    return given / min(EXCHANGE, grid.across, grid.down)


def solve(n, grid, width, dtype="float64"):
    """Returns the seconds of potrs from rows to the solution."""
    substitution = SUBSTITUTION * n / width + SUBSTITUTION_COLUMN * n
    factored = factorization(n, grid, width, dtype)[0]
    return CALL + factored + redistribution(n, grid, dtype) + substitution


def panels(n, grid, dtype="float64"):
    """Returns the bytes per column of an update's depth: the rank's own rows of a panel, and the
    rows that match its columns; twice, as one panel is received while another is used."""
    return 2 * SIZE[dtype] * n * (1 / grid.rows + 1 / grid.columns)


def depth(n, grid, dtype="float64"):
    """Returns the depth of updates, in columns, for which A leaves memory; at most 2048."""
    room = MEMORY - SIZE[dtype] * n * n / grid.ranks
    return int(min(DEPTH, room // panels(n, grid, dtype)))


def best(n, grid, dtype="float64"):
    """Returns the tile width with which potrs is fastest; None if none fits into the memory."""
    room = depth(n, grid, dtype)
    most = min(room, n // max(grid.rows, grid.columns))
    widths = [width for width in WIDTHS if width <= most]
    return min(widths, key=lambda width: solve(n, grid, width, dtype), default=None)


def seconds(n, grid, dtype="float64"):
    """Returns the seconds of potrs with the best tile width; infinity if it doesn't fit."""
    width = best(n, grid, dtype)
    return solve(n, grid, width, dtype) if width else math.inf


def nodes(ranks):
    """Returns 1 × P over nodes, where each panel enters a node through one port."""
    return line(ranks, LINK if ranks <= NODE else PORT)


def ports(ranks):
    """Returns `nodes`, with a panel that enters through all ports of a node and is then distributed
    by NVLink. The engine doesn't do that."""
    return nodes(ranks)._replace(across=LINK if ranks <= NODE else min(LINK, NODE * PORT))


def grids(ranks):
    """Yields all grids of powers of two, with a column or a row inside a node if it fits."""
    for rows in (2**i for i in range(ranks.bit_length())):
        columns = ranks // rows
        if ranks <= NODE:
            yield Grid(rows, columns)
            continue
        if rows <= NODE:
            yield Grid(rows, columns, PORT, PORT if rows == 1 else LINK)
        if columns <= NODE:
            yield Grid(rows, columns, PORT if columns == 1 else LINK, PORT)
        if min(rows, columns) > NODE:
            yield Grid(rows, columns, PORT, PORT)


def fastest(n, ranks, dtype="float64"):
    return min(grids(ranks), key=lambda grid: seconds(n, grid, dtype))


def share(n, ranks, taken, dtype="float64"):
    """Returns the fraction of the rate of products, for n³/3 operations in ``taken`` seconds."""
    return n**3 / 3 / (ranks * UPDATE[dtype] * taken)


def worth(ranks, row, dtype="float64", least=0.1):
    """Returns the n, multiples of 16384 up to 86 % of the memory, for which the best grid takes
    less time than `row`, 1 × P of the same number of GPUs, by the fraction ``least`` or more."""
    most = int(math.sqrt(0.86 * MEMORY * ranks / SIZE[dtype]))
    return [
        n
        for n in range(1 << 14, most, 1 << 14)
        if seconds(n, fastest(n, ranks, dtype), dtype) < (1 - least) * seconds(n, row, dtype)
    ]


def measured(dtype="float64"):
    """Returns {(n, ranks, T): seconds} of potrs with plain products."""
    found = {}
    wanted = ("potrs", "native", dtype, "dominant", 1, None)
    for name in ("tiles.jsonl", "gpu.jsonl"):
        for line in (RESULTS / name).read_text().splitlines():
            record = json.loads(line)
            if wanted == tuple(
                record.get(key)
                for key in ("routine", "backend", "dtype", "matrix", "nrhs", "precision")
            ):
                n, ranks, tile = record["n"], record["ranks"], record["T_A"]
                width = tile or tile_of("potrf", dtype, n, ranks)
                found[n, ranks, width] = record["seconds"]
    return found


def print_measured():
    print("  dtype        n ranks     T  measured  model  ratio  chain longer")
    for dtype in SIZE:
        for (n, ranks, width), taken in sorted(measured(dtype).items()):
            grid = line(ranks)
            paper = solve(n, grid, width, dtype)
            chained = factorization(n, grid, width, dtype)[2]
            print(
                f"{dtype} {n:8} {ranks:5} {width:5} {taken:9.4f} {paper:6.3f} {taken / paper:6.2f}"
                f" {chained:8.0%}"
            )


def print_widths():
    print("\nbest T, and what the default costs beside it")
    for n in (8192, 16384, 32768, 65536, 131072):
        cells = []
        for ranks in (1, 2, 4, 8):
            grid = line(ranks)
            default = solve(n, grid, tile_of("potrf", "float64", n, ranks))
            loss = default / seconds(n, grid) - 1
            cells.append(f"{ranks} GPUs: {best(n, grid)}, {loss:.0%}")
        print(f"{n:8}  " + "   ".join(cells))


def print_more():
    for link in (LINK, PORT):
        print(f"\nseconds of potrf, what updates are of that, T; links of {link / 1e9:.0f} GB/s")
        for n in (32768, 65536, 131072, 262144, 524288):
            cells = []
            for ranks in (4, 8, 16, 32, 64):
                # Only for the rates: the largest orders don't fit on the fewest GPUs.
                grid = line(ranks, link)
                width = min(
                    (width for width in WIDTHS if width * ranks <= n),
                    key=lambda width, n=n, grid=grid: solve(n, grid, width),
                )
                taken, updates, _ = factorization(n, grid, width)
                cells.append(f"{ranks}: {taken:.3g}, {updates / taken:.0%}, {width}")
            print(f"{n:8}  " + "   ".join(cells))


def cell(n, grid, dtype):
    taken = seconds(n, grid, dtype)
    return f"{taken:.3g}, {share(n, grid.ranks, taken, dtype):.0%}, {best(n, grid, dtype)}".replace(
        "%", " %"
    )


def print_grids():
    print("Seconds of potrs, part of the rate of products, T\n")
    print("| GPUs | n | dtype | 1 × P | 1 × P, ports shared | best Pr × Pc |")
    print("|---|---|---|---|---|---|")
    for ranks in (8, 64, 512):
        for n in (131072, 524288, PUBLISHED_N):
            for dtype in SIZE:
                grid = fastest(n, ranks, dtype)
                if not best(n, grid, dtype):
                    continue
                cells = [
                    ranks,
                    n,
                    dtype,
                    cell(n, nodes(ranks), dtype),
                    cell(n, ports(ranks), dtype),
                ]
                cells.append(f"{grid.rows} × {grid.columns}: {cell(n, grid, dtype)}")
                print(f"| {' | '.join(map(str, cells))} |")

    print("\nMultiples of 16384 from n to n for which the best grid takes 10 % less time than\n")
    print("| GPUs | dtype | 1 × P | 1 × P, ports shared |")
    print("|---|---|---|---|")
    for ranks in (8, 16, 64, 512):
        for dtype in SIZE:
            found = [worth(ranks, row(ranks), dtype) for row in (nodes, ports)]
            cells = [f"{ns[0]} to {ns[-1]}" if ns else "none" for ns in found]
            print(f"| {ranks} | {dtype} | {cells[0]} | {cells[1]} |")

    n, ranks, dtype = PUBLISHED_N, PUBLISHED_RANKS, "float32"
    print(f"\nn = {n}, {dtype}, {ranks} GPUs\n")
    print("| | s | part of the rate of products |")
    print("|---|---|---|")
    grid = fastest(n, ranks, dtype)
    for name, taken in {
        "published, cuSOLVERMp": PUBLISHED_SECONDS,
        f"model, 1 × {ranks}": seconds(n, nodes(ranks), dtype),
        f"model, {grid.rows} × {grid.columns}": seconds(n, grid, dtype),
        "updates alone": n**3 / 3 / (ranks * UPDATE[dtype]),
    }.items():
        print(f"| {name} | {taken:.0f} | {100 * share(n, ranks, taken, dtype):.0f} % |")
    held = SIZE[dtype] * n * n / ranks
    print(f"\nA is {held / 1e9:.1f} of {MEMORY / 1e9:.1f} GB; there is room for panels of", end=" ")
    print(f"{depth(n, nodes(ranks), dtype)} columns twice on 1 × {ranks},", end=" ")
    print(f"of {depth(n, grid, dtype)} (at most {DEPTH}) on {grid.rows} × {grid.columns}")


def main(_):
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
    if _GRIDS.value:
        print_grids()
        return
    print_measured()
    print_widths()
    print_more()


if __name__ == "__main__":
    app.run(main)
