"""Size limits of packages and their parts, and limits of a hub."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

MIB = 1 << 20

MAX_ARCHIVE_BYTES = 64 * MIB
"""Maximum size of a wheel or source archive."""
MAX_UNPACKED_BYTES = 128 * MIB
"""Maximum total unpacked size, including archives inside the archive."""
MAX_FILE_BYTES = 64 * MIB
"""Maximum unpacked size of a file."""
MAX_FILES = 5_000
"""Maximum number of files in an archive."""
MAX_COMPRESSION_RATIO = 200
"""Maximum number of unpacked bytes per packed byte; checked only for more than `RATIO_FREE_BYTES` unpacked bytes."""
RATIO_FREE_BYTES = 4 * MIB
MAX_STREAMS = 1_000
"""Maximum number of bzip2 or xz streams in a file; each may be empty, so that the sizes do not limit them."""
MAX_NESTING = 2
"""Maximum nesting depth of archives inside an archive."""
MAX_PATH_CHARS = 240
"""Maximum length of a path inside an archive."""
MAX_SOURCE_BYTES = 2 * MIB
"""Maximum size of a Python file that is parsed to find `load_environment`."""
MAX_METADATA_BYTES = 1 * MIB
"""Maximum size of each of the files METADATA (including the README), RECORD and PKG-INFO."""
MAX_MANIFEST_BYTES = 256 << 10
MAX_SIGNATURE_BYTES = 4 << 10

MAX_NAME_CHARS = 64
MAX_OWNER_CHARS = 40
MAX_VERSION_CHARS = 64
MAX_LINE_CHARS = 200
"""Maximum length of a one-line manifest field, such as an author or a tool's name."""
MAX_DESCRIPTION_CHARS = 500
MAX_TAG_CHARS = 32
MAX_ITEMS = 200
"""Maximum length of each list in a manifest, such as authors, dependencies or metrics."""
MAX_PARENTHESES = 20
"""Maximum number of opening parentheses in a dependency; the parser recurses at each parenthesis."""

ConcurrentUploads = Annotated[int, Meta(ge=1, le=64)]
TokenDays = Annotated[float, Meta(gt=0, le=36500)]
"""Lifetime of an API token in days."""
TokenDaysOrNever = Annotated[float, Meta(ge=0, le=36500)]
"""Lifetime of an API token in days on the command line, where 0 means that the token never expires."""
SearchLimit = Annotated[int, Meta(ge=1, le=1000)]
"""Maximum number of results that a search may request."""
