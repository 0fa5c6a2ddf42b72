"""Which headers travel through a proxy and which end at it (RFC 9110, 7.6.1)."""

from collections.abc import Iterable
from typing import Final

Headers = list[tuple[str, str]]  # in order, repeated names kept

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Set anew by the HTTP client for the connection it uses, or answered here.
_OWN_TO_REQUEST: Final = frozenset({"host", "expect", "content-length"})


def end_to_end(headers: Iterable[tuple[str, str]]) -> Headers:
    """`headers` without hop-by-hop ones and without those that Connection names."""
    listed = list(headers)
    ending = set(HOP_BY_HOP)
    for name, value in listed:
        if name.lower() == "connection":
            ending.update(token.strip().lower() for token in value.split(","))
    return [(name, value) for name, value in listed if name.lower() not in ending]


def request_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """What of a client's headers goes to the engine."""
    return [pair for pair in end_to_end(headers) if pair[0].lower() not in _OWN_TO_REQUEST]


def with_header(headers: Headers, name: str, value: str) -> Headers:
    """`headers` with exactly one `name`."""
    return [*without_header(headers, name), (name, value)]


def without_header(headers: Headers, name: str) -> Headers:
    return [pair for pair in headers if pair[0].lower() != name.lower()]


def value_of(headers: Iterable[tuple[str, str]], name: str) -> str | None:
    """The first value of a header; None where it is absent."""
    return next((value for key, value in headers if key.lower() == name.lower()), None)
