"""What can be said of the built pages without a browser: links, anchors, texts of images, addresses they load from."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from derived.figures.shown import FILE_NAME

COLAB = re.compile(r"https://colab\.research\.google\.com/github/[^/]+/[^/]+/blob/[^/]+/(.+)")
LOADS = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src"), ("object", "data")}
# a <link> with one of these only names an address; the others fetch it
NAMES_ONLY = {"canonical", "author", "license", "next", "prev", "index", "search", "genindex", "alternate"}


class Page(HTMLParser):
    """The ids, links, images and loaded addresses of one page."""

    def __init__(self, file):
        super().__init__()
        self.ids, self.links, self.images, self.loads = set(), [], [], []
        self.feed(Path(file).read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids.update(value for key, value in attributes if key == "id" or (tag == "a" and key == "name"))
        if tag == "a" and "href" in values:
            self.links.append(values["href"] or "")
        if tag == "img":
            self.images.append(values)
        self.loads += [values[key] for name, key in LOADS if tag == name and values.get(key)]
        if tag == "link" and not NAMES_ONLY & set(values.get("rel", "").split()):
            self.loads.append(values.get("href", ""))


def read(site):
    """Every page of a built site, by its address inside the site."""
    return {str(file.relative_to(site)): Page(file) for file in sorted(Path(site).rglob("*.html")) if is_page(file)}


def is_page(file):
    """Whether an HTML file is a page, and none of the templates that a theme leaves beside its scripts."""
    return "_static" not in file.parts


def broken_links(site, source):
    """Links, loads and anchors that lead nowhere: into the site, or to a notebook on Colab that is not in the book."""
    found, all_pages = [], read(site)
    for name, page in all_pages.items():
        for link in [*page.links, *page.loads]:
            if colab := COLAB.fullmatch(link):
                if not (source / colab.group(1)).exists():
                    found.append(f"{name}: {link}: no such notebook")
                continue
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = urlsplit(urljoin(f"/{name}", link)).path.lstrip("/") if parts.path else name
            target = unquote(target) + ("index.html" if target.endswith("/") else "")
            if not (site / target).is_file():
                found.append(f"{name}: {link}: no such file")
            elif parts.fragment and target in all_pages and unquote(parts.fragment) not in all_pages[target].ids:
                found.append(f"{name}: {link}: no such anchor")
    return found


def mute_images(site):
    """Images without a text, or with a file name in its place."""
    return [
        f"{name}: {image.get('src', '')[:60]}: alt = {image.get('alt')!r}"
        for name, page in read(site).items()
        for image in page.images
        if not (image.get("alt") or "").strip() or FILE_NAME.match(image["alt"].strip())
    ]


def loads_from_elsewhere(site):
    """Scripts, styles, images and fonts that pages or style sheets load from another place than the site."""
    found = [
        f"{name}: {address}" for name, page in read(site).items() for address in page.loads if urlsplit(address).netloc
    ]
    for sheet in sorted(Path(site).rglob("*.css")):
        imported = re.findall(
            r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""", sheet.read_text(encoding="utf-8")
        )
        found += [f"{sheet.relative_to(site)}: {address}" for address in imported]
    return found
