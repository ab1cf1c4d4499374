"""How long potrf takes by a model of its critical path, with rates measured on H200.

    python benchmarks/model.py

Prints the model beside the records of results/ (gpu.jsonl, tiles.jsonl), the tile width that it
finds best, and what it says of more GPUs than have been measured. float64, one right-hand side.
docs/performance.md explains it.
"""

import json
import os
import pathlib

from absl import app
from workspace import tile as tile_of

RESULTS = pathlib.Path(__file__).resolve().parent / "results"

# One H200, float64, measured: from timelines of runs in which nothing else was on the GPU.
UPDATE = 51.5e12  # operations a second of trailing updates, at the power limit of all GPUs
NEXT = 51e12  # those of the update of the next tile column, T deep
TILE = 0.5e-3 / 1024  # seconds a column of potrf of a diagonal tile
TILE_UPDATE = 0.1e-3  # update of a diagonal tile, whatever its size
PIECE = 128  # columns of a panel that are sent at a time
PIECE_SECONDS, PIECE_ROW = 46e-6, 2.0e-9  # of a piece: fixed, and for each row below the tile
PANEL = 60e12  # operations a second of what a panel's products add to that
WAITS = 0.1e-3  # between a panel and the next tile: events and launches
LINK = 350e9  # bytes a second of a copy between two GPUs
EXCHANGE = 340e9  # those of the redistribution, out of the busiest GPU; moves are beside it
# Seconds of the back substitution: a tile, and a column.
SUBSTITUTION, SUBSTITUTION_COLUMN = 60e-6, 0.09e-6
CALL = 1.3e-3  # Python, XLA and the meeting of the ranks, whatever the size: fitted to small n
SIZE = 8  # bytes of a number


def factorization(n, ranks, width, link=LINK):
    """Seconds of potrf, those of its updates, and the part of the steps in which the chain of
    panels takes longer than the update beside it."""
    total, updates, chained, steps = 0.0, 0.0, 0, 0
    for m in range(n - width, 0, -width):
        update = m * m * width / (ranks * UPDATE)
        panel = width / PIECE * (PIECE_SECONDS + PIECE_ROW * m) + m * width**2 / PANEL
        column = max(TILE * width, 2 * m * width**2 / NEXT)
        chain = TILE_UPDATE + column + panel + WAITS
        if ranks > 1:
            chain += SIZE * PIECE * m / link
        total += max(update, chain, SIZE * m * width / link if ranks > 1 else 0)
        updates += update
        chained += chain > update
        steps += 1
    return total, updates, chained / max(steps, 1)


def redistribution(n, ranks):
    """The first rank gives most: all but its own share of nearly whole columns."""
    if ranks == 1:
        return 0.0
    given = SIZE * n * n / ranks * (1 - 1 / ranks) * (1 - 1 / (2 * ranks))
    return given / EXCHANGE


def solve(n, ranks, width, link=LINK):
    """Seconds of potrs from rows to the solution."""
    substitution = SUBSTITUTION * n / width + SUBSTITUTION_COLUMN * n
    return CALL + factorization(n, ranks, width, link)[0] + redistribution(n, ranks) + substitution


def best(n, ranks, link=LINK):
    """The tile width with which potrs is fastest."""
    widths = (128, 256, 512, 1024, 2048)
    return min((width for width in widths if width * ranks <= n),
               key=lambda width: solve(n, ranks, width, link))  # fmt: skip


def measured():
    """{(n, ranks, T): seconds} of potrs in float64."""
    found = {}
    wanted = ("potrs", "native", "float64", "dominant", 1)
    for name in ("tiles.jsonl", "gpu.jsonl"):
        for line in (RESULTS / name).read_text().splitlines():
            record = json.loads(line)
            if wanted == tuple(
                record[key] for key in ("routine", "backend", "dtype", "matrix", "nrhs")
            ):
                n, ranks, tile = record["n"], record["ranks"], record["T_A"]
                width = tile or tile_of("potrf", "float64", n, ranks)
                found[n, ranks, width] = record["seconds"]
    return found


def main(_):
    os.chdir(os.environ.get("BUILD_WORKING_DIRECTORY", "."))  # `bazel run` starts elsewhere
    print("       n ranks     T  measured  model  ratio  chain longer")
    for (n, ranks, width), seconds in sorted(measured().items()):
        paper, chained = solve(n, ranks, width), factorization(n, ranks, width)[2]
        print(
            f"{n:8} {ranks:5} {width:5} {seconds:9.4f} {paper:6.3f} {seconds / paper:6.2f}"
            f" {chained:8.0%}"
        )
    print("\nbest T, and what the default costs beside it")
    for n in (8192, 16384, 32768, 65536, 131072):
        cells = []
        for ranks in (1, 2, 4, 8):
            width = best(n, ranks)
            loss = (
                solve(n, ranks, tile_of("potrf", "float64", n, ranks)) / solve(n, ranks, width) - 1
            )
            cells.append(f"{ranks} GPUs: {width}, {loss:.0%}")
        print(f"{n:8}  " + "   ".join(cells))
    for link in (LINK, 50e9):
        print(f"\nseconds of potrf, what updates are of that, T; links of {link / 1e9:.0f} GB/s")
        for n in (32768, 65536, 131072, 262144, 524288):
            cells = []
            for ranks in (4, 8, 16, 32, 64):
                width = best(n, ranks, link)
                seconds, updates, _ = factorization(n, ranks, width, link)
                cells.append(f"{ranks}: {seconds:.3g}, {updates / seconds:.0%}, {width}")
            print(f"{n:8}  " + "   ".join(cells))


if __name__ == "__main__":
    app.run(main)
