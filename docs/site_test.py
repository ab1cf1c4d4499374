"""The built site in a browser: links, resources that pages load, and whether pages fit a phone.

mkdocs has checked the links of the pages; these tests check those of the HTML, including the
theme's and the reference's.
"""

import functools
import html.parser
import http.server
import json
import os
import pathlib
import posixpath
import queue
import re
import shutil
import signal
import subprocess
import threading
import urllib.parse

import pytest

SITE = pathlib.Path(__file__).parent / "site"
WIDTHS = (390, 1440)

# Searches of newcomers, by the section that answers them.
SEARCHES = {
    "api.html#batches": "batch, vmap",
    "api.html#derivatives": "gradient, grad, derivative, hessian, jvp",
    "changelog.html": "changelog",
    "clients.html#gpjax": "gpjax",
    "clients.html#joblib-and-dask": "joblib, dask",
    "clients.html#lineax": "lineax",
    "clients.html#numpyro": "numpyro",
    "clients.html#optimistix-and-diffrax": "optimistix, diffrax",
    "clients.html#quantax": "quantax",
    "clients.html#tinygp": "tinygp",
    "contributing.html": "contribute, build, add a routine",
    "cuda.html#backends": "cusolvermg, cusolvermp",
    "examples.html": "colab",
    "faq.html#does-it-run-on-amd-gpus-tpus-macos-or-windows": "windows, mac, amd, rocm, tpu",
    "faq.html#how-do-i-cite-it": "cite, citation, bibtex, license",
    "faq.html#how-do-i-get-eigenvalues-singular-values-or-a-determinant": """
        eigenvalues, determinant""",
    "faq.html#how-do-i-make-a-matrix-that-is-too-large": """
        matrix too large, too large for one device""",
    "faq.html#how-do-i-save-a-factor": "save, pickle, reload, checkpoint, orbax, save a factor",
    "faq.html#how-do-i-see-progress-or-profile-a-call": """
        profiling, timeline, trace, progress, progress bar""",
    "faq.html#it-is-out-of-memory-what-can-i-do": "out of memory",
    "faq.html#how-many-gpus-do-i-need-does-my-matrix-fit": "how many GPUs do I need",
    "faq.html#is-the-result-reproducible": "reproducible, deterministic, same bits",
    "faq.html#what-does-jaxmg-not-do": """
        sparse, banded, toeplitz, tridiagonal, lobpcg, conjugate gradient, iterative,
        nonsymmetric eigenvalues, eig, schur, matrix multiplication, gemm""",
    "faq.html#which-function-do-i-need": "which function, inverse, linear solve",
    "faq.html#why-does-it-use-one-device-only": "why one device",
    "faq.html#why-is-the-result-nan": "not positive definite, nan, why nan, status, info",
    "howto/gaussian_process.html": "gaussian process, gp, kernel, likelihood",
    "howto/host_memory.html": """
        host memory, offload, larger than gpu, does not fit, does it fit""",
    "howto/jax_linalg.html#functions": """
        pseudo inverse, pinv, rank deficient, matrix square root, sqrtm, expm, logm, matrix
        function""",
    "howto/jax_linalg.html#singular-values": "svd, singular values, pca, low rank",
    "howto/jax_linalg.html#which-triangle-is-read": """
        symmetric, lower triangle, which triangle, upper""",
    "howto/least_squares.html": "least squares, lstsq",
    "howto/least_squares.html#ridge": "ridge",
    "howto/optimizers.html": "optimizer, flax, optax",
    "howto/optimizers.html#muon-and-shampoo": "polar, orthogonalize, muon, shampoo",
    "howto/sharding.html#make-a-in-pieces": "hdf5",
    "howto/sharding.html": "sharding, mesh, in_specs, explicit axes, jit",
    "howto/soap.html": "soap",
    "howto/tile_width.html": "tile width, block size",
    "howto/variational_monte_carlo.html": "minsr, vmc, stochastic reconfiguration",
    "howto/variational_monte_carlo.html#with-netket": "netket",
    "install.html": "install, pip, pip install",
    "install.html#conda": "conda",
    "install.html#containers": "docker",
    "install.html#slurm": "offline, no internet",
    "install.html#size-of-the-wheels": "size of the wheels",
    "install.html#what-has-been-tested": "version",
    "install.html#which-gpu": "A100",
    "memory.html": "how much memory, memory",
    "memory.html#how-to-save-memory": "oom",
    "migration.html": "jaxmg 1.4, migration",
    "performance.html": "speed, speed vs jax, benchmark",
    "performance.html#how-it-scales": "how many gpus, scaling",
    "performance.html#one-gpu-beside-jax": "single gpu, one gpu, small matrices",
    "performance.html#what-to-choose": "slow",
    "precision.html": """
        complex, float16, bfloat16, float64, double precision, x64, tf32, mixed precision""",
    "processes.html": "multi node, several hosts",
    "processes.html#starting-it": "kubernetes, slurm, openmpi, launcher",
    "reference/factors.html#jaxmg.LUFactor.rcond": "rcond",
    "reference/linalg_values.html#jaxmg.linalg.cond": "condition number, cond",
    "security.html": "security, token, port",
    "start.html": "laptop",
    "troubleshooting.html#ctrl-c": "killed, sigkill",
    "troubleshooting.html#it-ends-with-a-segmentation-fault": "segfault, crash at exit",
    "troubleshooting.html#it-hangs-on-cpu-devices": "hang, stuck, hangs, deadlock",
    "troubleshooting.html#while-it-runs": "timeout",
}

# Attributes by which a page loads a resource without a click.
LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}

# A page that opens all others in a frame of a given width, and reports how much each exceeds it,
# and how the words of search_words.py are displayed in the results of a search.
MEASURE = """<!doctype html><body><script>
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 800; frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const root = frame.contentDocument.documentElement;
  const result = [page, width, root.scrollWidth - root.clientWidth];
  frame.remove();
  return result;
}
async function wordsOfResults(search) {
  const frame = document.createElement("iframe");
  frame.width = 1440; frame.height = 800; frame.src = "index.html?q=" + search;
  document.body.append(frame);
  for (let i = 0; i < 200; i++) {
    await new Promise(done => setTimeout(done, 100));
    const words = frame.contentDocument?.querySelectorAll(".md-search-result__item .md-tags") ?? [];
    if (words.length) return [...words].map(each => getComputedStyle(each).display);
  }
  return [];
}
(async () => {
  const results = [];
  for (const width of WIDTHS) for (const page of PAGES) results.push(await measure(page, width));
  const words = await wordsOfResults("kubernetes");
  fetch("/measured", {method: "POST", body: JSON.stringify([results, words])});
})();
</script></body>"""


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads, self.h1 = [], [], [], 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.h1 += tag == "h1"
        if "id" in attrs:
            self.ids.append(attrs["id"])
        for name in ("href", "src"):
            if attrs.get(name) is not None:
                self.links.append(attrs[name])
                if (tag, name) in LOADS:
                    self.loads.append(attrs[name])


@functools.cache
def pages():
    return {path.relative_to(SITE).as_posix(): Page(path) for path in sorted(SITE.rglob("*.html"))}


def external(link):
    return urllib.parse.urlsplit(link).scheme != ""


def test_links_within_the_site_lead_somewhere():
    dead = []
    for name, page in pages().items():
        for link in page.links:
            if external(link):
                continue
            path, _, anchor = map(urllib.parse.unquote, link.partition("#"))
            there = posixpath.join(posixpath.dirname(name), path) if path else name
            there = posixpath.normpath(there)
            target = pages().get(there)
            if not (SITE / there).is_file() or (anchor and target and anchor not in target.ids):
                dead.append((name, link))
    assert len(pages()) > 20 and not dead


def test_links_to_elsewhere_are_well_formed():
    links = {link for page in pages().values() for link in page.links if external(link)}
    print(*sorted(links), sep="\n")
    form = re.compile(r"https://[a-z0-9-]+(\.[a-z0-9-]+)+(/[\w.~%+,()@:#/=&?-]*)?")
    assert not [link for link in links if not form.fullmatch(link)]


def test_nothing_is_loaded_from_elsewhere():
    assert not {load for page in pages().values() for load in page.loads if external(load)}
    for style in SITE.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?https?:", style.read_text()), style


def test_docstrings_link_to_the_pages_that_they_name():
    reference = {name: page for name, page in pages().items() if name.startswith("reference/")}
    links = {link for page in reference.values() for link in page.links}
    assert {"../precision.html", "../howto/host_memory.html"} <= links
    for name in reference:
        assert not re.search(r"\bdocs/[\w/]+\.md", (SITE / name).read_text()), name


def test_a_page_has_one_title_and_no_anchor_twice():
    for name, page in pages().items():
        assert page.h1 == 1, name
        assert len(page.ids) == len(set(page.ids)), name


def test_the_home_page_and_bibtex_have_the_version():
    home, faq = ((SITE / name).read_text() for name in ("index.html", "faq.html"))
    version = re.search(r"<p>Version ([\d.]+),", home)[1]
    assert f"= {{{version}}}" in re.sub("<[^>]+>", "", faq)
    assert home.count("<li>") and home.index("first-screen") < home.index("grid cards")


def test_the_search_knows_every_page():
    text = (SITE / "search/search_index.js").read_text()
    index = json.loads(text.removeprefix("var __index = "))
    found = {entry["location"].partition("#")[0] or "index.html" for entry in index["docs"]}
    assert found == set(pages()) - {"404.html"}


def test_the_search_answers_what_newcomers_ask():
    """The theme's own search returns the right section as its first result."""
    searches = {
        " ".join(search.split()): place
        for place, line in SEARCHES.items()
        for search in line.split(",")
    }
    script = pathlib.Path(__file__).parent / "search.js"
    command = ["node", script, SITE, *searches]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    answers = json.loads(result.stdout)
    first = {search: found[:1] for search, found in zip(searches, answers, strict=True)}
    assert first == {search: [place] for search, place in searches.items()}


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium (Debian's chromium)")
def test_no_page_is_wider_than_its_window_and_search_words_are_hidden(tmp_path):
    measure = MEASURE.replace("WIDTHS", json.dumps(WIDTHS))
    measure = measure.replace("PAGES", json.dumps(sorted(pages())))
    answers = queue.Queue()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path != "/measure":
                return super().do_GET()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(measure.encode())

        def do_POST(self):
            answers.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=SITE)
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with open(tmp_path / "log", "w") as log:
            command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
            command += ["--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/profile"]
            command += ["--remote-debugging-port=0"]  # or it ends when the page is loaded
            command += [f"http://localhost:{server.server_port}/measure"]
            chromium = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            measured, words = json.loads(answers.get(timeout=300))
        except queue.Empty:
            pytest.fail((tmp_path / "log").read_text())
        finally:
            os.killpg(chromium.pid, signal.SIGKILL)
            chromium.wait()
            server.shutdown()
    assert len(measured) == len(WIDTHS) * len(pages())
    assert not [page for page in measured if page[2] > 0]
    assert words and set(words) == {"none"}
