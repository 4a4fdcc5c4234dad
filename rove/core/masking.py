"""Mask secrets in errors and responses, which are shown and stored in run folders."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import PureWindowsPath
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from rove.core.errors import InfraError
from rove.core.messages import AssistantMessage
from rove.core.plain import is_mapping, is_sequence
from rove.core.protocols import Response

NO_KEY = "EMPTY"
"""Key that is sent if there is none, because some servers require one."""
MASK = "***"
MIN_SECRET_CHARS = 6
"""Minimum length of secrets, and of prefixes of truncated secrets, that are masked."""
MIN_RESPONSE_SECRET_CHARS = 12
"""Minimum length of secrets that are masked in responses: shorter secrets may be ordinary words, like the "ollama" that a local
server expects."""
_CREDENTIAL = re.compile("auth|cookie|credential|key|password|secret|token", re.IGNORECASE)
"""Pattern of the names of headers that hold credentials. Values of other headers, such as a team name, may be ordinary words."""
SECRET_FIELD = re.compile(
    r"(^|[_-])(key|api[_-]?keys|token|secrets?|passwords?|passwd|credentials?|authorization|cookies?)([_-]?\d+)?$",
    re.IGNORECASE,
)
"""Pattern of the names of settings and arguments that hold secrets."""
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_MIN_VARIABLE_CHARS = 8
"""Minimum length of values of environment variables that are masked."""
_SECRET_VALUE = re.compile(
    r"\b(?:sk|pk|rk|rove|hf|ghp|gho|github_pat|xox[abp]|glpat)[-_][\w-]{12,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=Bearer )[\w.~+/=-]{8,}|(?<=://)(?:[^\s/@:]*:[^\s/]+|[^\s/@?#\"',]+)(?=@)"
)
"""Pattern of API keys in the formats of common providers, and of credentials in URLs."""
_PATH_IN_TEXT = re.compile(r"""(?<![^\s"'=,;(\[{])(?:file:)?(?:~?/|[A-Za-z]:[\\/])[^\s"',;)\]}]+""")
"""Pattern of an absolute path, or of the URL of such a path, at the start of a word or of an option's value."""
_URL_SAFE = str.maketrans("+/", "-_")
_URL_ENCODED = re.compile("%[0-9A-F]{2}")


class Secrets:
    """Masks an API key (unless it is `NO_KEY`) and the values of headers."""

    def __init__(self, key: str, headers: Mapping[str, str]):
        credentials = {name: value for name, value in headers.items() if _CREDENTIAL.search(name)}
        response_forms: set[str] = set()
        for secret in _secrets(key, credentials):
            if len(secret) >= MIN_RESPONSE_SECRET_CHARS:
                response_forms.update(_spellings(secret))
        # The longest first: a shorter form may be a part of a longer one, whose remaining characters would stay.
        self._response_forms = sorted(response_forms, key=len, reverse=True)
        forms = set(chain.from_iterable(map(_forms, _secrets(key, headers))))
        self._forms: list[tuple[re.Pattern[str], str]] = []
        for form in sorted(forms, key=len, reverse=True):
            if len(form) >= MIN_SECRET_CHARS:
                escaped_head = r"\\*".join(map(re.escape, form[:MIN_SECRET_CHARS]))
                self._forms.append((re.compile(escaped_head), form))

    def mask_text(self, text: str) -> str:
        """Return the text with secrets masked, even if they are escaped any number of times, encoded, or truncated at the end."""
        # Complete secrets first, in all spellings: a quote that seems to truncate one spelling may be part of another.
        for truncated in (False, True):
            for head, form in self._forms:
                text = _masked(text, head, form[MIN_SECRET_CHARS:], truncated)
        return text

    def mask_response(self, response: Response) -> Response:
        """Return the response; credentials that the endpoint repeated in its message are masked.

        Keys and credential headers of at least `MIN_RESPONSE_SECRET_CHARS` characters are masked, unescaped and in
        JSON, HTML, URL or base64 encoding.
        """
        message = self._without_credentials(response.message)
        if message == response.message:
            return response
        return msgspec.structs.replace(response, message=AssistantMessage(**message))

    def _without_credentials(self, value: object) -> Any:
        if isinstance(value, str):
            for form in self._response_forms:
                value = value.replace(form, MASK)
            return value
        if is_mapping(value):
            return {self._without_credentials(name): self._without_credentials(item) for name, item in value.items()}
        return [self._without_credentials(item) for item in value] if is_sequence(value) else value

    def mask_error(self, error: Exception) -> Exception:
        """Return the error with its message masked, without causes that contain a secret; an `InfraError` if the class
        adds a secret.
        """
        error.args = tuple(self.mask_text(part) if isinstance(part, str) else part for part in error.args)
        trace = "".join(traceback.format_exception(error))
        if self.mask_text(trace) != trace:
            error.__cause__ = error.__context__ = None
        if self.mask_text(str(error)) == str(error):
            return error
        return InfraError(self.mask_text(f"{type(error).__name__}: {error}"))


def without_secrets(value: object, settings: object = None, by_field: bool = True) -> Any:
    """Return a copy of a JSON value with secrets masked.

    A string is masked if its field name suggests a secret. In every string, parts in the format of an API key are
    masked, and so are the values of environment variables and `settings` whose names suggest a secret.

    Args:
        value: Settings, records or texts that are shown or shared.
        by_field: Whether to mask by field names. Records have fields such as "example_key", whose values are not
            secret.
    """
    secrets: dict[str, str] = {}
    for name, text in os.environ.items():
        is_word = len(text) < _MIN_VARIABLE_CHARS or text.isalpha()
        if _SECRET_VARIABLE.search(name.upper()) and not is_word:  # masking a word would hide it in every text
            secrets[name] = text
    secrets |= {str(number): text for number, text in enumerate(_secret_settings(settings, False))}
    return _mask_values(value, Secrets(NO_KEY, secrets), "", by_field)


def public_path(text: str) -> str:
    """Return only the last two parts of a path outside of the current folder, because the other parts describe the machine.

    In other texts, such as the option "--dir=/home/me/data/x", this applies to the absolute paths.
    """
    if text.startswith((".", "/", "~", "file:/")) or PureWindowsPath(text).is_absolute():
        return _last_parts(text)
    return _PATH_IN_TEXT.sub(lambda match: _last_parts(match[0]), text)


def _last_parts(path: str) -> str:
    return "/".join(path.replace("\\", "/").rstrip("/").split("/")[-2:])


def _secret_settings(value: object, is_secret: bool) -> Iterator[str]:
    if is_mapping(value):
        for name, item in value.items():
            yield from _secret_settings(item, is_secret or bool(SECRET_FIELD.search(str(name))))
    elif is_sequence(value):
        for item in value:
            yield from _secret_settings(item, is_secret)
    elif is_secret and isinstance(value, str) and len(value) >= MIN_SECRET_CHARS:
        yield value


def _mask_values(value: object, secrets: Secrets, field: str, by_field: bool) -> object:
    if is_mapping(value):
        # Everything below a secret field is secret, even under a harmless name.
        secret_field = field if SECRET_FIELD.search(field) else None
        masked: dict[str, object] = {}
        for key, item in value.items():
            masked[str(key)] = _mask_values(item, secrets, secret_field or str(key), by_field)
        return masked
    if is_sequence(value):
        return [_mask_values(item, secrets, field, by_field) for item in value]
    if isinstance(value, str):
        if by_field and value and SECRET_FIELD.search(field):
            return MASK
        return _SECRET_VALUE.sub(MASK, secrets.mask_text(value))
    return value


def _secrets(key: str, headers: Mapping[str, str]) -> Iterator[str]:
    if key != NO_KEY:
        yield key
    for value in headers.values():
        yield value
        yield from (pair.partition("=")[2] for pair in value.split(";"))  # cookies
        scheme_and_secret = value.split()
        if len(scheme_and_secret) == 2:
            yield scheme_and_secret[1]


def _spellings(secret: str) -> Iterator[str]:
    """Yield a secret as it is and in the encodings of JSON, Python literals, HTML, URLs and base64."""
    content = secret.encode(errors="replace")
    yield from (secret, repr(secret)[1:-1], repr(content)[2:-1], json.dumps(secret)[1:-1], html.escape(secret))
    for encode in (partial(quote, safe=""), quote, quote_plus):
        encoded = encode(secret, errors="replace")
        yield from (encoded, _URL_ENCODED.sub(lambda match: match[0].lower(), encoded))
    # The secret may begin at any of the 3 bytes that base64 writes as 4 characters ("Basic user:secret"). Only the characters
    # from `first` to `end` depend on the secret alone.
    for offset, first in ((0, 0), (1, 2), (2, 3)):
        encoded = base64.b64encode(bytes(offset) + content).decode()
        end = (offset + len(content)) * 8 // 6
        core = encoded[first:end]
        yield from (core, core.translate(_URL_SAFE))


def _forms(secret: str) -> Iterator[str]:
    """Yield the spellings of a secret without backslashes, and the spellings on one line."""
    for form in _spellings(secret):
        plain = form.replace("\\", "")
        yield from (plain, " ".join(plain.split()))


def _extent(text: str, end: int, tail: str) -> tuple[int, bool]:
    """Return the index after the part of `tail` found at `end`, and whether all of `tail` was found. Skips backslashes."""
    for character in tail:
        following = end
        while text[following : following + 1] == "\\":
            following += 1
        if text[following : following + 1] != character:
            return end, False
        end = following + 1
    return end, True


def _masked(text: str, head: re.Pattern[str], tail: str, truncated: bool) -> str:
    """Mask every secret that begins with `head` and continues with `tail`; with `truncated`, also one cut off at a line
    end or quote.
    """
    position = 0
    while match := head.search(text, position):
        position = match.start()
        end, is_whole = _extent(text, match.end(), tail)
        if is_whole or (truncated and text[end:].lstrip("\\")[:1] in "…\n'\""):  # "" at the end of the text
            text = text[:position] + MASK + text[end:]
            position += len(MASK)
        else:
            position += 1
    return text
