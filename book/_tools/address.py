"""The repository's public address: read from its one place, written to all others.

The address and the branch stand in _config.yml, under `repository`.
Only the standard library is used, so that `book/_tools/stamp` runs before anything is installed.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from book._tools import normal

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("_config.yml", "pyproject.toml", "README.md", "CITATION.cff", "CONTRIBUTING.md")


class Address(NamedTuple):
    """A repository on GitHub: the only host that Colab opens notebooks from."""

    owner: str
    name: str
    branch: str = "main"

    @property
    def url(self):
        return f"https://github.com/{self.owner}/{self.name}"

    @property
    def stamped(self):
        return (self.owner, self.name) != UNSTAMPED[:2]

    def colab(self, path=""):
        """Where Colab opens a notebook of the repository."""
        return f"https://colab.research.google.com/github/{self.owner}/{self.name}/blob/{self.branch}/{path}"

    def spellings(self):
        """Every form in which the address is written, longest first, so that no replacement eats another's part."""
        return (
            self.colab(),
            f"{self.url}/blob/{self.branch}/",
            f"{self.url}/tree/{self.branch}/",
            f"https://{self.owner}.github.io/{self.name}",
            self.url,
        )


UNSTAMPED = Address("OWNER", "REPOSITORY")


def parse(url, branch="main"):
    """Read an address from its URL; a ValueError says what is wrong with it."""
    match = re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+?)(?:\.git)?/?", url)
    if not match:
        raise ValueError(f"{url!r} is not of the form https://github.com/OWNER/REPOSITORY, the one that Colab can open")
    if not re.fullmatch(r"[\w./-]+", branch):
        raise ValueError(f"{branch!r} is not the name of a branch")
    return Address(*match.groups(), branch)


def current(root=ROOT):
    """The address that the tree at `root` carries."""
    block = re.search(r"(?m)^repository:\n((?:[ \t]+.*\n)+)", (root / "_config.yml").read_text(encoding="utf-8"))
    setting = dict(re.findall(r"(?m)^\s+(\w+):\s*\"?([^\s\"]+)", block[1] if block else ""))
    if "url" not in setting:
        raise ValueError("_config.yml has no `repository:` block with a `url:`, the one place of the address")
    return parse(setting["url"], setting.get("branch", "main"))


def places(root=ROOT):
    """The files that carry the address: the project's own, and every page of the book."""
    named = [root / name for name in PLACES if (root / name).exists()]
    pages = [path for kind in ("*.ipynb", "*.md") for path in sorted((root / "book").rglob(kind))]
    return named + [path for path in pages if not {"_build", ".ipynb_checkpoints"} & set(path.parts)]


def rewrite(text, old, new):
    """The text with every spelling of the old address in the new one's."""
    for before, after in zip(old.spellings(), new.spellings(), strict=True):
        # not `…/REPOSITORY-fork`, which only begins like ours
        text = re.sub(re.escape(before) + ("" if before.endswith("/") else r"(?![\w-])"), lambda _, a=after: a, text)
    branch = rf"(?m)^([ \t]*branch[ \t]*[:=][ \t]*)(\"?){re.escape(old.branch)}(\"?)$"
    return re.sub(branch, lambda found: f"{found[1]}{found[2]}{new.branch}{found[3]}", text)


def stamp(new, root=ROOT):
    """Write the address everywhere; the names of the files that changed."""
    old, changed = current(root), []
    for path in places(root):
        before = path.read_text(encoding="utf-8")
        after = rewrite(before, old, new)
        if path.suffix == ".ipynb":
            notebook = json.loads(after)
            after = normal.dumps(normal.fill(notebook, path.relative_to(root).as_posix(), new))
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path.relative_to(root).as_posix())
    return changed
