"""Build hook: write the description that a registry shows, and the project's addresses.

Both depend on `repository` in pyproject.toml ([tool.hatch.metadata.hooks.custom]). A registry shows the README alone, so a link
into the repository must be absolute. While there is no public repository, such links become plain text, and the pictures are left
out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE_ELEMENT = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)
RELATIVE_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]*)\)")
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]*)\)")
RELATIVE_SOURCE = re.compile(r'\b(src|srcset)="(?!https?:)([^"]*)"')


def registry_description(readme: str, repository: str, version: str) -> str:
    """Return the README for a registry's page.

    Args:
        repository: Address of the public repository, such as `https://HOST/OWNER/rove`; empty if there is none.
        version: Version that is built. Links lead to its tag, so that they show the files of this version.
    """
    if not repository:
        text = PICTURE_ELEMENT.sub("", readme)
        text = re.sub(RELATIVE_PICTURE.pattern + r"\n*", "", text)
        return RELATIVE_LINK.sub(r"\1", text)
    pages, files = f"{repository}/blob/v{version}/", f"{repository}/raw/v{version}/"
    text = RELATIVE_SOURCE.sub(rf'\1="{files}\2"', readme)
    text = RELATIVE_PICTURE.sub(rf"![\1]({files}\2)", text)
    return RELATIVE_LINK.sub(rf"[\1]({pages}\2)", text)


def project_urls(repository: str, version: str) -> dict[str, str]:
    """Return the addresses that a registry shows beside the description; empty if there is no public repository."""
    if not repository:
        return {}
    pages = f"{repository}/blob/v{version}"
    return {
        "Repository": repository,
        "Documentation": f"{pages}/docs/index.md",
        "Changelog": f"{pages}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class CustomMetadataHook(MetadataHookInterface):
    """Set the fields `readme` and `urls` of the project."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both fields to the metadata; hatchling calls this after it has read the version."""
        repository = self.config["repository"].rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = registry_description(readme, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = project_urls(repository, metadata["version"])
