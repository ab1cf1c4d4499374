"""The notebook is one, has no outputs, and its cells run one after the other."""

import json
import pathlib
import re

import jax
import numpy as np

NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def cells(kind):
    found = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def test_is_a_notebook_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    for cell in notebook["cells"]:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["metadata"] == {} and all(isinstance(line, str) for line in cell["source"])
    assert len(cells("code")) + len(cells("markdown")) == len(notebook["cells"])
    for cell in cells("code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None


def test_runs_from_top_to_bottom():
    names = {}
    for cell in cells("code"):
        exec(compile("".join(cell["source"]), f"cell {cell['id']}", "exec"), names)
        jax.block_until_ready([x for x in names.values() if isinstance(x, jax.Array)])
    a, x, b = (np.asarray(names[name]) for name in ("a", "x", "b"))
    np.testing.assert_allclose(a @ x, b, atol=1e-12)
    np.testing.assert_allclose(names["logdet"], np.linalg.slogdet(a)[1], rtol=1e-12)
    np.testing.assert_allclose(names["a_inv"], np.linalg.inv(a), atol=1e-12)
    np.testing.assert_allclose(names["w"], np.linalg.eigvalsh(a), rtol=1e-12)
    np.testing.assert_allclose(names["again"], 2 * x, atol=1e-12)
