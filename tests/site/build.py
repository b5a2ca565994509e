"""Build the book into a folder, know its pages, and serve them on this machine."""

import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
STRICT = ("-W", "-n", "--keep-going")


def pages(source=ROOT):
    """The pages of the book, in order, as its table of contents names them (`book/intro`, …)."""
    toc = yaml.safe_load((source / "_toc.yml").read_text())

    def files(entry):
        if "file" in entry:
            yield entry["file"]
        for key in ("parts", "chapters", "sections"):
            for inner in entry.get(key, ()):
                yield from files(inner)

    return [toc["root"], *files(toc)]


class Built(NamedTuple):
    """A built book: the folder of its pages, whether the build failed, and the lines that say why."""

    folder: Path
    failed: bool
    problems: list[str]


def build(source, target, *flags):
    """Build the book anew into `target`. Pages are written even where the strict build fails on a warning."""
    start = "from jupyter_book.cli.main import main; main()"  # the interpreter's own, wherever its scripts are
    command = [sys.executable, "-c", start, "build", str(source), "--path-output", str(target), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr).splitlines()
    problems = [line for line in log if re.search("WARNING|ERROR|Exception", line)]
    folder = Path(target) / "_build" / "html"
    return Built(folder, done.returncode != 0 or not folder.is_dir(), problems if done.returncode else [])


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing about it."""

    def log_message(self, format, *arguments):
        pass


@contextmanager
def served(folder):
    """Serve a folder on a free port of this machine; the context is its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
