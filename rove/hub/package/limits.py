"""How large a package, and anything in it, may be. Sizes in bytes."""

from __future__ import annotations

MIB = 1 << 20

ARCHIVE = 64 * MIB
"""A wheel or a source archive, as it lies on disk."""
UNPACKED = 128 * MIB
"""All its files together, what is packed once more inside them included."""
FILE = 64 * MIB
"""One file of it."""
FILES = 5_000
"""How many files it has."""
RATIO = 200
"""How many bytes come out of one, once more than `RATIO_FREE` have come out."""
RATIO_FREE = 4 * MIB
NESTED = 2
"""How deep archives lie in archives inside a package."""
PATH = 240
"""Characters of a path inside an archive."""
SOURCE_TEXT = 2 * MIB
"""A Python file that is searched for `load_environment`."""
METADATA = 1 * MIB
"""A wheel's METADATA, its README included; likewise its RECORD and a source archive's PKG-INFO."""
MANIFEST = 256 << 10
SIGNATURE = 4 << 10

NAME = 64
OWNER = 40
VERSION = 64
LINE = 200
"""Characters of a line of a manifest: an author, a licence, a tool's name, an argument's default."""
DESCRIPTION = 500
TAG = 32
ITEMS = 200
"""How many authors, dependencies, metrics, tools, players, arguments there may be, of each."""
PARENTHESES = 20
"""Opening parentheses of a dependency: its parser calls itself for each."""
