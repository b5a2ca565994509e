"""The site, built once and served; Chromium, started once; each page opened once for all the questions about it.

The fixtures end with this folder: while Playwright runs, no other test of the process can start an event loop.
"""

import pytest

from tests.site import browse, planted
from tests.site.build import ROOT, STRICT, build, pages, served


@pytest.fixture(scope="package")
def book(tmp_path_factory):
    """The book, built strictly and anew."""
    return build(ROOT, tmp_path_factory.mktemp("site"), *STRICT)


@pytest.fixture(scope="package")
def built(book):
    """The folder of the book's pages."""
    return book.folder


@pytest.fixture(scope="package")
def site(built):
    with served(built) as address:
        yield address


@pytest.fixture(scope="package")
def planted_built(tmp_path_factory):
    """The folder of a small book whose every page has one planted fault."""
    source = tmp_path_factory.mktemp("planted")
    planted.write(source)
    return build(source, source).folder


@pytest.fixture(scope="package")
def planted_site(planted_built):
    with served(planted_built) as address:
        yield address


@pytest.fixture(scope="package")
def browser():
    path = browse.executable()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(browse.FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def windows(browser):
    """A browser window for each mode."""
    contexts = {mode: browser.new_context(**settings) for mode, settings in browse.MODES.items()}
    yield contexts
    for context in contexts.values():
        context.close()


@pytest.fixture(scope="package", params=list(browse.MODES))
def mode(request):
    return request.param


@pytest.fixture(scope="package", params=pages())
def visit(request, mode, windows, site):
    """A page of the book in one of the modes."""
    visit = browse.Visit(windows[mode], site, request.param)
    yield visit
    visit.page.close()


@pytest.fixture
def planted_visit(windows, planted_site):
    """Opens a page of the planted book, in a mode."""
    opened = []

    def visit(page, mode="light"):
        opened.append(browse.Visit(windows[mode], planted_site, page))
        return opened[-1]

    yield visit
    for visited in opened:
        visited.page.close()
