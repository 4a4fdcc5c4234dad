"""Pictures of six pages of the built site, docs/site/pictures/*.png: `make docs docs-pictures`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support"))

from browser import chromium  # noqa: E402
from viewer_pictures import small  # noqa: E402

FOLDER = Path(__file__).parent / "pictures"
PAGES = (
    ("index.html", "light", 1440),
    ("concepts.html", "dark", 1440),
    ("first_hour/2_environment.html", "light", 1440),
    ("training.html", "dark", 390),
    ("reference/api/envs.html", "light", 1440),
    ("reference/errors.html", "light", 390),
)
"""Page, color scheme and width in pixels."""


def main() -> None:
    """Take all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        for name, scheme, width in PAGES:
            context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
            page = context.new_page()
            page.goto((ROOT / "build/site" / name).as_uri())
            file = FOLDER / f"{Path(name).stem}-{scheme}-{width}.png"
            page.screenshot(path=str(file))
            small(file)
            context.close()


if __name__ == "__main__":
    main()
