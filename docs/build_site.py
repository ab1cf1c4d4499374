"""Builds the site for Bazel: build_site.py MKDOCS_YML IFRAME_WORKER_JS FOLDER.

Warnings are errors, also those about dead links and anchors.
"""

import logging
import os
import pathlib
import shutil
import sys

import ruff
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort


def main():
    config_file, iframe_worker, folder = sys.argv[1:]
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.WARNING)
    folder = pathlib.Path(folder).absolute()
    # ruff breaks the lines of long signatures.
    os.environ["PATH"] = str(pathlib.Path(ruff.__file__).parents[1] / "bin")
    config = load_config(config_file, site_dir=str(folder))
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build(config)
    except Abort as error:
        sys.exit(f"the site has errors: {error}")
    finally:
        config.plugins.on_shutdown()
    shutil.copy(iframe_worker, folder / "assets/iframe-worker.js")
    # The theme's own links to the server's root, where the site may not be.
    shutil.copy(pathlib.Path(config.docs_dir) / "404.html", folder)
    # These are for a server, and the site needs none.
    for name in ("sitemap.xml", "sitemap.xml.gz"):
        (folder / name).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
