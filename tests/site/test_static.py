"""The built pages, read as files: links and anchors lead somewhere, images have texts, nothing comes from elsewhere."""

import re

from tests.site import links
from tests.site.build import ROOT, pages


def test_the_book_builds_without_a_warning(book):
    assert (book.failed, book.problems) == (False, [])


def test_every_page_of_the_table_of_contents_is_built(built):
    assert [page for page in pages() if not (built / f"{page}.html").is_file()] == []


def test_every_link_and_anchor_leads_somewhere(built):
    assert links.broken_links(built, ROOT) == []


def test_every_image_has_a_text(built):
    assert links.mute_images(built) == []


def test_nothing_is_loaded_from_elsewhere(built):
    assert links.loads_from_elsewhere(built) == []


def test_the_site_opens_on_the_introduction(built):
    index = (built / "index.html").read_text()
    assert re.search(r'http-equiv="refresh" content="0; url=book/intro\.html"', index, re.IGNORECASE)


def test_chapters_offer_colab_and_their_notebook(built):
    chapters = [page for page in pages() if (ROOT / f"{page}.ipynb").exists()]
    for page in chapters:
        found = links.Page(built / f"{page}.html").links
        assert any(colab.group(1) == f"{page}.ipynb" for link in found if (colab := links.COLAB.fullmatch(link))), page
        assert any(link.endswith(f"_sources/{page}.ipynb") for link in found), page


def test_the_search_knows_the_words_of_the_book(built):
    assert (built / "search.html").is_file()
    assert (
        '"transform"' in (built / "searchindex.js").read_text()
        or "transform:" in (built / "searchindex.js").read_text()
    )


def test_vega_is_shipped_only_if_a_page_draws(built):
    draws = any('class="derived-drag' in (built / f"{page}.html").read_text() for page in pages())
    assert (built / "_vega/vega.js").exists() == draws


def test_mathjax_is_shipped_in_part(built):
    shipped = {
        file.relative_to(built / "_static/mathjax").parts[0] for file in (built / "_static/mathjax").rglob("*.*")
    }
    assert shipped == {"tex-mml-chtml.js", "output", "input"}
    assert len(list((built / "_static/mathjax/output/chtml/fonts/woff-v2").glob("*.woff"))) == 23
