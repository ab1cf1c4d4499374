"""Each row of the tables for people who come from JAXMg or jax.numpy.linalg has a test."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = {
    path.stem: path
    for folder in ("python", "processes")
    for path in sorted((ROOT / "tests" / folder).rglob("*.py"))
}

# The beginning of a row of docs/migration.md -> the tests of it, file::name.
ROWS = {
    "Calls of 0.0.x": {
        "`potrs(": "jaxmg_0_0_test::test_potrs jaxmg_0_0_test::test_shape_of_the_right_hand_side",
        "`potri(": "jaxmg_0_0_test::test_potri",
        "`syevd(": "jaxmg_0_0_test::test_syevd",
        "`potrs_shardmap_ctx(": "jaxmg_0_0_test::test_potrs_shardmap_ctx",
        "`potri_shardmap_ctx(": "jaxmg_0_0_test::test_potri_shardmap_ctx",
        "`syevd_shardmap_ctx(": "jaxmg_0_0_test::test_syevd_shardmap_ctx",
        "`potri_symmetrize(": "jaxmg_0_0_test::test_potri_shardmap_ctx",
        "`cyclic_1d(": "jaxmg_0_0_test::test_cyclic_1d cyclic_test::test_round_trip_of_any_size",
        "`pad_rows(": "jaxmg_0_0_test::test_padding_inside_shard_map",
        "`get_cols_cyclic(": "jaxmg_0_0_test::test_get_cols_cyclic",
    },
    "Calls of 1.x": {
        "`potrs(": "compat_test::test_1_4_1_calls",
        "`syevd(": "compat_test::test_1_4_1_calls",
        "`potrs_shardmap_ctx(": "compat_test::test_1_4_1_global_contract",
        "`syevd_shardmap_ctx(": "compat_test::test_1_4_1_global_contract",
        "`potrs_jit_ctx`": "compat_test::test_1_4_1_global_contract",
        "matrices sharded as": "compat_test::test_1_4_1_calls",
        "`lu_solve(": "compat_test::test_1_4_1_calls",
        "`least_squares(": "compat_test::test_1_4_1_calls",
        "`gesvd(": "compat_test::test_1_4_1_gesvd_and_polar",
        "`lu_solve_shardmap_ctx`": "compat_test::test_1_4_1_global_contract_of_other_routines",
        "`status[0]`": "compat_test::test_1_4_1_status_by_index",
        "`device_supports_vmm(": "compat_test::test_1_4_1_device_supports_vmm",
        "one process for each GPU": "jobs_test::test_",
    },
    "What is different": {
        "A and b": "calls_test::test_inputs_are_kept calls_test::test_donate",
        "`jax_enable_x64`": "compat_test::test_x64_is_left_alone",
        "`T_A`": "potrs_test::test_solves jaxmg_0_0_test::test_tile_that_does_not_fit_the_shards",
        "status": "potrs_test::test_not_positive_definite",
        "the second call": "calls_test::test_second_call_compiles_nothing",
        "the mesh's own order": "sharding_test::test_permuted_and_partial_mesh",
        "a mesh of some of the GPUs": "sharding_test::test_permuted_and_partial_mesh",
        "right-hand sides": "potrs_test::test_many_right_hand_sides",
        "one rank's failure": "lost_test::test_lost_in_a_call",
        "n, not a multiple": "potrs_test::test_solves",
        "JAX": "plugin_test::test_",  # ci/cpu.sh py311 to py314 run all tests with each
    },
    "NetKet": {
        "3.22.0 to": "compat_test::test_netket_3_22",
        "3.22.4": "compat_test::test_netket_3_22",
        "3.23.0": "compat_test::test_netket_3_23",
    },
}


def rows(page, heading):
    """Returns the first cells of the table below a heading of a page, without its head."""
    section = re.search(rf"^##+ {re.escape(heading)}$(.*?)(?=^##|\Z)", page, re.M | re.S)[1]
    return re.findall(r"^\| *(.+?) *\|", section, re.M)[2:]


@pytest.mark.parametrize("heading", ROWS)
def test_every_row_has_a_test(heading):
    found = rows((ROOT / "docs/migration.md").read_text(), heading)
    expected = ROWS[heading]
    assert len(found) == len(expected)
    for cell, (begin, tests) in zip(found, expected.items(), strict=True):
        assert cell.startswith(begin), (cell, begin)
        for test in tests.split():
            file, name = test.split("::")
            assert f"\ndef {name}" in FILES[file].read_text(), test


def test_every_function_of_linalg_has_a_test():
    cells = rows((ROOT / "docs/howto/jax_linalg.md").read_text(), "Functions")
    names = [name for cell in cells for name in re.findall(r"`(\w+)\(", cell)]
    assert len(names) > 30
    tests = "".join(path.read_text() for path in FILES.values())
    missing = [
        n for n in names if not re.search(rf"linalg\.{n}\b|jla\.{n}\b|[\"']{n}[\"'( ]", tests)
    ]
    assert not missing
