"""Serves the site on this machine: bazel run //docs:serve [-- PORT]."""

import functools
import http.server
import pathlib
import sys


def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=pathlib.Path(__file__).parent / "site"
    )
    with http.server.ThreadingHTTPServer(("localhost", port), handler) as server:
        print(f"http://localhost:{server.server_port}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
