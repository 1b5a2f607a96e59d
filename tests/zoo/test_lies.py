"""Servers that lie: each answer of the table ends a download soon, with an Error, and leaves no file under the final name."""
from __future__ import annotations

import hashlib
import pathlib
import socketserver
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.support import transfer
from ocaffe.zoo.fetch import download

CONTENT = bytes(range(256)) * 40
SUMS = {"sha256": hashlib.sha256(CONTENT).hexdigest()}
DIGITS = b"9" * 5000
OK, PART, MOVED = b"200 OK", b"206 Partial Content", b"302 Found"


class Lie(NamedTuple):
    """An answer. `begun`: bytes of an earlier download. `repeated`: bytes that are sent after it for ever, with a pause in seconds."""

    answer: bytes
    fact: str
    begun: int = 0
    repeated: bytes = b""
    pause: float = 0.0


def http(status: bytes, *headers: bytes, body: bytes = b"abc") -> bytes:
    return b"".join(line + b"\r\n" for line in (b"HTTP/1.1 " + status, *headers, b"")) + body


def length(count: int | bytes) -> bytes:
    return b"Content-Length: " + (count if isinstance(count, bytes) else b"%d" % count)


def part(text: bytes) -> bytes:
    return b"Content-Range: bytes " + text


def moved(address: bytes) -> bytes:
    return http(MOVED, b"Location: " + address, length(0), body=b"")


CHUNKED, SIZE = b"Transfer-Encoding: chunked", len(CONTENT)
LIES = {
    # lengths
    "a length of 5,000 digits": Lie(http(OK, length(DIGITS)), "'9999"),
    "a negative length": Lie(http(OK, length(-5)), "'-5' bytes"),
    "a length in words": Lie(http(OK, length(b"many")), "'many' bytes"),
    "digits of another script": Lie(http(OK, length("٣".encode())), "bytes"),
    "more than is accepted": Lie(http(OK, length(5 << 30)), "at most"),
    "a length that is too large": Lie(http(OK, length(100)), "ended after 3 of 100 bytes"),
    "a length that is too small": Lie(http(OK, length(2)), "the sha256 is"),
    "nothing": Lie(http(OK, length(0), body=b""), "the sha256 is"),
    "more bytes than a part holds": Lie(http(PART, part(b"0-99/100"), length(3)), "Content-Length 3"),
    # ranges
    "a range of 5,000 digits": Lie(http(PART, part(DIGITS + b"-1/2"), length(3)), "Content-Range is", 3),
    "a range that ends in 5,000 digits": Lie(http(PART, part(b"3-" + DIGITS + b"/*")), "Content-Range is", 3),
    "another range": Lie(http(PART, part(b"0-2/10"), length(3)), "other bytes than those from 3 on", 3),
    "a range backwards": Lie(http(PART, part(b"3-1/10")), "other bytes than those from 3 on", 3),
    "no range": Lie(http(PART, length(3)), "Content-Range is 'nothing'", 3),
    "a part that was not asked for": Lie(http(PART, part(b"5-7/10"), length(3)), "other bytes than those from 0 on"),
    "a part of less than the rest": Lie(http(PART, part(b"3-5/10"), length(3)), "ended after 6 of 10 bytes", 3),
    "all is there, 5,000 digits": Lie(http(b"416 No", part(b"*/" + DIGITS), length(0), body=b""), "416", 3),
    "all is there, but not right": Lie(http(b"416 No", part(b"*/3"), length(0), body=b""), "the sha256 is", 3),
    "no range at all": Lie(http(b"416 No", length(0), body=b""), "416", 3),
    # redirections
    "to a file": Lie(moved(b"file:///etc/passwd"), "file:"),
    "to ftp": Lie(moved(b"ftp://127.0.0.1/x"), "ftp"),
    "to data": Lie(moved(b"data:,abc"), "data"),
    "to a broken address": Lie(moved(b"http://[::1"), "cannot be downloaded"),
    "to a port that is none": Lie(moved(b"http://127.0.0.1:99999999/"), "cannot be downloaded"),
    "to a name that is none": Lie(moved(b"http://" + b"a" * 70 + b".example/"), "cannot be downloaded"),
    "to a name with odd bytes": Lie(moved(b"http://127.0.0.1:1/a b\xff\x00"), "cannot be downloaded"),
    "to itself": Lie(moved(b"/again"), "infinite loop"),
    "to nowhere": Lie(http(MOVED, length(0), body=b""), "302"),
    # chunks
    "a size that is none": Lie(http(OK, CHUNKED, body=b"ZZZ\r\nabc"), "cannot be downloaded"),
    "a negative chunk": Lie(http(OK, CHUNKED, body=b"-5\r\nabc"), "negative"),
    "a negative chunk after a good one": Lie(http(OK, CHUNKED, body=b"3\r\nabc\r\n-5\r\nabc"), "negative"),
    "a chunk of 64 bits": Lie(http(OK, CHUNKED, body=b"f" * 16 + b"\r\nabc"), "IncompleteRead"),
    "a chunk of 5,000 digits": Lie(http(OK, CHUNKED, body=b"f" * 5000 + b"\r\nabc"), "cannot be downloaded"),
    "a chunk that is cut off": Lie(http(OK, CHUNKED, body=b"8\r\nabc"), "IncompleteRead"),
    "trailers without end": Lie(http(OK, CHUNKED, body=b"3\r\nabc\r\n0\r\n"), "seconds", 0, b"X: y\r\n", 0.01),
    # the rest
    "a packed body": Lie(http(OK, b"Content-Encoding: gzip", length(3)), "compressed (gzip)"),
    "no http": Lie(b"\0\1garbage\r\n\r\n", "cannot be downloaded"),
    "no answer": Lie(b"", "cannot be downloaded"),
    "an answer without a file": Lie(http(b"204 No Content", body=b""), "204"),
    "a status of 5,000 digits": Lie(http(DIGITS), "cannot be downloaded"),
    "5,000 headers": Lie(http(OK, *[b"X: y"] * 5000), "cannot be downloaded"),
    "a header of 200,000 bytes": Lie(http(OK, b"X: " + b"a" * 200_000), "cannot be downloaded"),
    "escapes of a terminal": Lie(http(b"500 \x1b]0;owned\x07bad", length(0), body=b""), "\\x1b]0;owned\\x07bad"),
    "a drop from time to time": Lie(http(OK, length(300_000)), "and 500 are the least", 0, b"a", 0.1),
    "a body without end, drop by drop": Lie(http(OK), "and 500 are the least", 0, b"a", 0.1),
    "a body without end, fast": Lie(http(OK), "at most", 0, b"a" * 65536),
    "a header without end, drop by drop": Lie(b"HTTP/1.1 200 OK\r\nX: ", "no complete headers", 0, b"a", 0.05),
    "headers without end, line by line": Lie(b"HTTP/1.1 200 OK\r\n", "no complete headers", 0, b"X: y\r\n", 0.05),
    "Continue without end": Lie(b"", "no complete headers", 0, b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
    "silence": Lie(b"HTTP/1.1 200 OK\r\n", "timed out", 0, b"", 0.05),
}


class Server(socketserver.ThreadingTCPServer):
    """Gives one answer to every request."""

    daemon_threads, allow_reuse_address = True, True
    lie: Lie
    ended: threading.Event


class Handler(socketserver.StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        lie = self.server.lie
        try:
            self.wfile.write(lie.answer)
            while (lie.repeated or lie.pause) and not self.server.ended.wait(lie.pause):
                self.wfile.write(lie.repeated)
        except OSError:
            pass  # the client has closed the connection


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("PATIENCE", 0.5), ("HEADERS", 0.6), ("LEAST_RATE", 1000)):
        monkeypatch.setattr(transfer, name, value)
    with Server(("127.0.0.1", 0), Handler) as made:
        made.ended = threading.Event()
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield made
        made.ended.set()
        made.shutdown()
        thread.join()


@pytest.mark.parametrize("name", LIES)
def test_lie(name: str, server: Server, tmp_path: pathlib.Path) -> None:
    server.lie = LIES[name]
    path, begun = tmp_path / "w.caffemodel", time.monotonic()
    if server.lie.begun:
        pathlib.Path(f"{path}.part").write_bytes(CONTENT[: server.lie.begun])
    with pytest.raises(Error) as caught:
        download(f"http://127.0.0.1:{server.server_address[1]}/file", str(path), SUMS, max_bytes=1 << 20)
    assert server.lie.fact in caught.value.fact and caught.value.fix
    assert all(line.isprintable() for line in str(caught.value).splitlines()) and not path.exists()
    assert time.monotonic() - begun < 10 and threading.active_count() < 20


def honest(first: int) -> Sequence[Any]:
    return http(PART, part(b"%d-%d/%d" % (first, SIZE - 1, SIZE)), length(SIZE - first), body=CONTENT[first:]), first


@pytest.mark.parametrize(("answer", "begun"), [
    (http(OK, length(SIZE), body=CONTENT), 0),
    (http(OK, body=CONTENT), 0),
    (http(OK, length(SIZE), body=CONTENT), 100),  # the whole file again
    (http(OK, CHUNKED, body=b"%x\r\n%s\r\n0\r\n\r\n" % (SIZE, CONTENT)), 0),
    (http(OK, CHUNKED, length(7), body=b"%x;name=value\r\n%s\r\n0\r\n\r\n" % (SIZE, CONTENT)), 0),  # a chunked body has no length
    honest(100),
    honest(SIZE - 1),
    (http(PART, part(b"100-%d/*" % (SIZE - 1)), body=CONTENT[100:]), 100),
    (http(b"100 Continue", body=b"") + http(OK, length(SIZE), body=CONTENT), 0),
    (http(OK, b"Content-Encoding: identity", b"Content-Disposition: attachment; filename=\"../../x\"", length(SIZE), body=CONTENT), 0),
])  # fmt: skip
def test_truth(answer: bytes, begun: int, server: Server, tmp_path: pathlib.Path) -> None:
    server.lie = Lie(answer, "")
    path = tmp_path / "w.caffemodel"
    if begun:
        pathlib.Path(f"{path}.part").write_bytes(CONTENT[:begun])
    download(f"http://127.0.0.1:{server.server_address[1]}/file", str(path), SUMS)
    assert path.read_bytes() == CONTENT and sorted(tmp_path.iterdir()) == [path]


def test_a_slow_file_that_is_fast_enough_arrives(server: Server, tmp_path: pathlib.Path) -> None:
    """2,000 bytes in a second, for longer than the patience."""
    many = CONTENT[:4000]
    server.lie = Lie(http(OK, length(len(many)), body=b""), "", 0, many[:200], 0.1)
    download(f"http://127.0.0.1:{server.server_address[1]}/file", str(tmp_path / "w"), {"sha256": hashlib.sha256(many[:200] * 20).hexdigest()})


def test_the_whole_time_is_limited(server: Server, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LONGEST", 1.0)
    server.lie = Lie(http(OK), "", 0, b"a" * 200, 0.1)
    with pytest.raises(Error, match="did not arrive within"):
        download(f"http://127.0.0.1:{server.server_address[1]}/file", str(tmp_path / "w"), SUMS)


@pytest.mark.parametrize("url", ["http://[::1", "http://", "http://127.0.0.1:99999999/x", "https://", "http://a b/", "http://\u2100/"])
def test_broken_addresses(url: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "get", "vgg16", "--to", str(tmp_path / "d"), "--sha256", SUMS["sha256"], "--url", url]) == 1
    assert capsys.readouterr().err.startswith("error: ")
