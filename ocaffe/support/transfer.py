"""Receives files from web servers, which may be wrong, slow or hostile.

Only http and https are spoken, also after redirections. Numbers in headers have a limit of digits. A watch closes connections that bring too few bytes, and
those that last too long: a timeout of sockets begins anew with each byte.
"""
from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from ocaffe import __version__
from ocaffe.errors import Error

CHUNK = 1 << 18
PATIENCE = 20.0  # seconds without a byte, or with fewer bytes than LEAST_RATE allows
LEAST_RATE = 1000  # bytes for each of these seconds
HEADERS = 20.0  # seconds until the headers of the file, with all redirections
LONGEST = 24 * 3600.0  # seconds for a file
_NUMBER = re.compile(r"\d{1,18}")
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
ELSEWHERE = "get the file elsewhere"
_AGAIN = f"run the command again later, or {ELSEWHERE}"


class Watch:
    """Shuts the connections of a transfer down when it is too slow. Use it as a context."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.problem = ""  # why connections were shut down
        self._received = self._before = 0
        self._begun = self._since = time.monotonic()
        self._body = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for each in self.sockets:  # responses that a redirection to a broken address has left open hold some
            if (descriptor := each.detach()) >= 0:
                socket.close(descriptor)

    def received(self, count: int) -> None:
        """Count bytes of the file. The first call, with 0, ends the headers."""
        self._received += count
        if not self._body:
            self._body, self._since = True, time.monotonic()

    def _run(self) -> None:
        while not self._done.wait(min(0.25, PATIENCE / 4)):
            self.problem = self.problem or self._judged(time.monotonic())
            if self.problem:
                for each in self.sockets:  # again and again: a redirection may open another one
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)

    def _judged(self, now: float) -> str:
        if now - self._begun > LONGEST:
            return f"the file did not arrive within {LONGEST / 3600:g} hours"
        if not self._body:
            return f"the server sent no complete headers within {HEADERS:g} seconds" if now - self._begun > HEADERS else ""
        if now - self._since < PATIENCE:
            return ""
        count, least = self._received - self._before, PATIENCE * LEAST_RATE
        self._before, self._since = self._received, now
        return f"the server sent {count:,} bytes in {PATIENCE:g} seconds, and {least:,.0f} are the least" if count < least else ""


class Answer:
    """The headers of a file's answer. `first`: the number of its first byte in the file. `total`: bytes of the whole file, None if they are not told."""

    def __init__(self, response: Any, url: str, have: int, watch: Watch) -> None:
        """Raise Error if the headers contradict themselves, or the request for the bytes from `have` on."""
        self._response, self._url, self._watch = response, url, watch
        headers = response.headers
        coding = headers.get("Content-Encoding", "identity")
        if coding.strip().lower() not in ("", "identity"):
            raise self._wrong(f"the server sends the file compressed ({printable(coding)}), although it was asked not to")
        chunked = "chunked" in headers.get("Transfer-Encoding", "").lower()
        length = None if chunked else self._number(headers.get("Content-Length"))
        self.first, self.total = 0, length
        if response.status == http.client.PARTIAL_CONTENT:
            given = headers.get("Content-Range") or "nothing"
            match = _RANGE.fullmatch(given)
            if match is None or int(match[1]) != have or int(match[2]) < have or length not in (None, int(match[2]) - have + 1):
                raise self._wrong(f"the server sends other bytes than those from {have:,} on: Content-Range is '{printable(given)}', Content-Length {length}")
            self.first, self.total = have, int(match[2]) + 1 if match[3] == "*" else int(match[3])
        elif response.status != http.client.OK:
            raise self._wrong(f"the server answers {response.status} {printable(response.reason)}, which is no file")

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes of the file."""
        self._watch.received(0)
        while chunk := self._response.read1(CHUNK):
            left = getattr(self._response, "chunk_left", None)
            if isinstance(left, int) and left < 0:
                raise self._wrong("the server sends a part of a negative size")
            self._watch.received(len(chunk))
            yield chunk

    def _number(self, text: str | None) -> int | None:
        """Return the bytes in a header, None without it."""
        if text is not None and _NUMBER.fullmatch(text.strip()) is None:
            raise self._wrong(f"the server says that the file has '{printable(text)}' bytes")
        return None if text is None else int(text)

    def _wrong(self, fact: str) -> Error:
        return Error(fact, place=self._url, fix=ELSEWHERE)


@contextlib.contextmanager
def opened(url: str, have: int = 0) -> Iterator[Answer]:
    """Send the request for a file, for its bytes from `have` on. The server may send the whole file: see `first` of the Answer.

    Raises HTTPError for the statuses of errors, Error for an answer that contradicts itself, or is too slow, and exceptions of any other type for an
    answer that is no http.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise Error("is no http or https address", place=url, fix="give an address that begins with https://")
    with Watch() as watch:
        headers = {"User-Agent": f"ocaffe/{__version__}", "Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
        try:
            with _opener(watch).open(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as response:
                yield Answer(response, url, have, watch)
        except Exception:
            if watch.problem:
                raise Error(watch.problem, place=url, fix=_AGAIN) from None
            raise
        if watch.problem:  # a body without a length ends with its connection
            raise Error(watch.problem, place=url, fix=_AGAIN)


def _opener(watch: Watch) -> urllib.request.OpenerDirector:
    """Return an opener that follows redirections, and knows http and https alone. Its connections belong to a watch."""

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            watch.sockets.append(self.sock)

    class Encrypted(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            watch.sockets.append(self.sock)

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> Any:
            return self.do_open(Plain, req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> Any:
            return self.do_open(Encrypted, req)

    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler, urllib.request.UnknownHandler, Http, Https, urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler, urllib.request.HTTPErrorProcessor,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener


def total_of(content_range: str | None) -> int | None:
    """Return the size of the file in a header such as `bytes */100`, None without one."""
    match = re.fullmatch(r"bytes .{1,40}/(\d{1,18})", content_range or "")
    return int(match[1]) if match else None


def printable(text: object) -> str:
    """Return what a server says, short and without control characters."""
    said = ascii(str(text))[1:-1]
    return said if len(said) <= 80 else f"{said[:80]}.."
