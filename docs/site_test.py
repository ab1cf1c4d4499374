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

# Queries of newcomers, and the pages that answer them.
QUESTIONS = {
    "save a factor": "faq.html#how-do-i-save-a-factor",
    "pickle": "faq.html#how-do-i-save-a-factor",
    "reload": "faq.html#how-do-i-save-a-factor",
    "out of memory": "faq.html#it-is-out-of-memory-what-can-i-do",
    "does it fit": "faq.html#how-many-gpus-do-i-need-does-my-matrix-fit",
    "how many GPUs do I need": "faq.html#how-many-gpus-do-i-need-does-my-matrix-fit",
    "matrix too large": "faq.html#how-do-i-make-a-matrix-that-is-too-large",
    "too large for one device": "faq.html#how-do-i-make-a-matrix-that-is-too-large",
    "eigenvalues": "faq.html#how-do-i-get-eigenvalues-singular-values-or-a-determinant",
    "singular values": "faq.html#how-do-i-get-eigenvalues-singular-values-or-a-determinant",
    "determinant": "faq.html#how-do-i-get-eigenvalues-singular-values-or-a-determinant",
    "which function": "api.html",
    "checkpoint": "faq.html#how-do-i-save-a-factor",
    "vmap": "faq.html#does-it-work-under-jit-grad-and-vmap",
    "AMD": "faq.html#does-it-run-on-amd-gpus-tpus-macos-or-windows",
    "A100": "install.html#which-gpu",
    "cite": "faq.html#how-do-i-cite-it",
    "SLURM": "install.html#slurm",
    "security": "security.html",
    "size of the wheels": "install.html#size-of-the-wheels",
    "laptop": "start.html",
    "sharding": "howto/sharding.html",
    "why one device": "faq.html#why-does-it-use-one-device-only",
    "why NaN": "faq.html#why-is-the-result-nan",
    "slow": "faq.html#why-is-it-slow",
    "float64": "faq.html#why-is-it-float32-not-float64",
    "several hosts": "faq.html#does-it-run-on-several-hosts",
    "not positive definite": "start.html#a-matrix-that-isnt-positive-definite",
    "mixed precision": "precision.html",
    "pip install": "install.html",
    "hangs": "troubleshooting.html#it-hangs-on-cpu-devices",
    "deadlock": "troubleshooting.html#it-hangs-on-cpu-devices",
}

# Attributes by which a page loads a resource without a click.
LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}

# A page that opens all others in a frame of a given width, and reports how much each exceeds it.
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
(async () => {
  const results = [];
  for (const width of WIDTHS) for (const page of PAGES) results.push(await measure(page, width));
  fetch("/measured", {method: "POST", body: JSON.stringify(results)});
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


def test_a_page_has_one_title_and_no_anchor_twice():
    for name, page in pages().items():
        assert page.h1 == 1, name
        assert len(page.ids) == len(set(page.ids)), name


def test_the_search_knows_every_page():
    text = (SITE / "search/search_index.js").read_text()
    index = json.loads(text.removeprefix("var __index = "))
    found = {entry["location"].partition("#")[0] or "index.html" for entry in index["docs"]}
    assert found == set(pages())


def test_the_search_answers_what_newcomers_ask():
    """The theme's own search returns the right page as its first result."""
    script = pathlib.Path(__file__).parent / "search.js"
    command = ["node", script, SITE, *QUESTIONS]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    answers = json.loads(result.stdout)
    first = {question: found[:1] for question, found in zip(QUESTIONS, answers, strict=True)}
    assert first == {question: [page] for question, page in QUESTIONS.items()}


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium (Debian's chromium)")
def test_no_page_is_wider_than_its_window(tmp_path):
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
            measured = json.loads(answers.get(timeout=300))
        except queue.Empty:
            pytest.fail((tmp_path / "log").read_text())
        finally:
            os.killpg(chromium.pid, signal.SIGKILL)
            chromium.wait()
            server.shutdown()
    assert len(measured) == len(WIDTHS) * len(pages())
    assert not [page for page in measured if page[2] > 0]
