"""The notebooks are such, run from top to bottom, and have the outputs of a run."""

import json
import re

import notebooks
import numpy as np
import pytest

PATHS = sorted(notebooks.ROOT.glob(notebooks.NOTEBOOKS))


def cells(path, kind):
    return [cell for cell in notebooks.read(path)["cells"] if cell["cell_type"] == kind]


def test_there_are_some():
    assert len(PATHS) >= 3


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_is_a_notebook_with_outputs(path):
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    names = [cell["id"] for cell in notebook["cells"]]
    assert len(set(names)) == len(names)
    for cell in notebook["cells"]:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell["metadata"] == {} and all(isinstance(line, str) for line in cell["source"])
    assert len(cells(path, "code")) + len(cells(path, "markdown")) == len(notebook["cells"])
    counts = [cell["execution_count"] for cell in cells(path, "code")]
    assert counts == list(range(1, len(counts) + 1))
    pictures = [picture for cell in cells(path, "code") for picture in notebooks.outputs(cell)[1]]
    assert len(pictures) == 1 and pictures[0].startswith(b"\x89PNG")


def test_the_first_cell_installs_what_is_missing(monkeypatch, tmp_path):
    """From wheels where there are some, else from the sources, as on Colab."""
    (source,) = {cells(path, "code")[0]["source"] for path in PATHS}
    commands = []
    monkeypatch.setattr("subprocess.run", lambda command, check: commands.append(command))
    monkeypatch.chdir(tmp_path)
    exec(source, {})
    assert not commands  # jaxmg is here
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    exec(source, {})
    clone, install = commands
    assert clone[:2] == ["git", "clone"] and clone[-1] == "source"
    assert install[1:4] == ["-m", "pip", "install"]
    assert install[-2:] == ["./source/xla_ffi/plugin", "./source[cpu]"]
    (tmp_path / "dist").mkdir()
    exec(source, {})
    assert commands[2][-3:] == ["--find-links", "dist", "jaxmg[cpu]>=2"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_run_has_the_outputs_that_it_shows(path):
    assert list(notebooks.different(path)) == []


def test_the_first_one_computes_what_numpy_does():
    names = {}
    notebooks.run(notebooks.read(notebooks.ROOT / "examples/quickstart.ipynb"), names)
    a, x, b = (np.asarray(names[name]) for name in ("a", "x", "b"))
    np.testing.assert_allclose(a @ x, b, atol=1e-12)
    np.testing.assert_allclose(names["logdet"], np.linalg.slogdet(a)[1], rtol=1e-12)
    np.testing.assert_allclose(names["a_inv"], np.linalg.inv(a), atol=1e-12)
    np.testing.assert_allclose(names["w"], np.linalg.eigvalsh(a), rtol=1e-12)
    np.testing.assert_allclose(names["again"], 2 * x, atol=1e-12)


@pytest.mark.parametrize(
    "kept, now, equal",
    [
        ("x is 1.500, 4 times", "x is 1.501, 4 times", True),
        ("x is 1.5", "x is 1.6", False),
        ("residual 2.1e-15", "residual 7.0e-16", True),
        ("status 0", "status 1", False),
        ("status 0", "info 0", False),
    ],
)
def test_texts_are_compared_up_to_rounding(kept, now, equal):
    assert notebooks.same(kept, now) == equal


def test_a_cell_that_fails_is_found(tmp_path):
    path = tmp_path / "fails.ipynb"
    notebook = notebooks.read(PATHS[0])
    notebook["cells"] = [{**cells(PATHS[0], "code")[0], "source": "assert 1 == 2"}]
    notebooks.write(path, notebook)
    with pytest.raises(RuntimeError, match="fails.ipynb failed"):
        notebooks.executed(path)


def test_a_page_has_the_cells_their_outputs_and_the_picture():
    text, pictures = notebooks.page(notebooks.ROOT / "examples/quickstart.ipynb")
    assert list(pictures) == ["quickstart_1.png"] and 'src="quickstart_1.png"' in text
    assert text.startswith("# ") and text.count("```python") == len(cells(PATHS[-1], "code"))
    assert "4 cpu devices" in text and 'href="quickstart.ipynb"' in text
    assert f'href="{notebooks.COLAB}/quickstart.ipynb"' in text
