"""The encyclopedia: its pages, its sections by ID, and a search index."""

from __future__ import annotations

import functools
import re

import rove as vf

try:
    import bm25s
except ImportError as error:
    raise vf.ConfigError(
        "wiki_search needs bm25s; install it (pip install bm25s), or rove's extra: rove[wiki]"
    ) from error

from .articles import Page, write_pages
from .world import make_world

SHOWN = 8
"""Maximum number of pages in a search result."""


class Encyclopedia:
    """All pages of a world, with a search index."""

    def __init__(self, pages: dict[str, Page]):
        self.pages = pages
        self.sections: dict[str, str] = {}
        for page in pages.values():
            self.sections |= {page.section_id(i): text for i, text in enumerate(page.texts)}
        self._ids = list(pages)
        self._index = bm25s.BM25()
        texts = (" ".join([page.thing.title, page.thing.title, *page.texts]) for page in pages.values())
        self._index.index([words_of(text) for text in texts], show_progress=False)

    def search(self, query: str) -> list[Page]:
        """Return the pages that match a query best; pages without any of its words are excluded."""
        words = words_of(query)
        if not words:
            return []
        scores = self._index.get_scores(words).tolist()
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[:SHOWN]
        return [self.pages[self._ids[i]] for i in best if scores[i] > 0]


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return re.findall(r"\w+", text.lower().replace("'", ""))


@functools.lru_cache(maxsize=2)
def encyclopedia(world_seed: int, num_articles: int) -> Encyclopedia:
    """Return the encyclopedia of a world; the two most recent ones are cached."""
    return Encyclopedia(write_pages(make_world(world_seed, num_articles), world_seed))
