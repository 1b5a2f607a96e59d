"""Downloads of public weights from a local server: resumed, truncated, wrong, missing, too large; files of one's own; the table."""
from __future__ import annotations

import hashlib
import http.server
import io
import os
import pathlib
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ocaffe.cli import main
from ocaffe.errors import Error
from ocaffe.support.lock import FileLock
from ocaffe.zoo import fetch
from ocaffe.zoo.fetch import download
from ocaffe.zoo.figures import figures
from ocaffe.zoo.templates import names, template
from ocaffe.zoo.weights import TORCHVISION, WEIGHTS, find_weights

pytestmark = pytest.mark.quick

CONTENT = bytes(range(256)) * 4000
SHA1, SHA256 = hashlib.sha1(CONTENT).hexdigest(), hashlib.sha256(CONTENT).hexdigest()
SUMS = {"sha256": SHA256}


class Server(http.server.ThreadingHTTPServer):
    """Serves CONTENT at every path but /gone. `cut`: bytes after which it closes the connection. `ranges`: it supports Range. `requests`: their Ranges."""

    cut: int | None = None
    ranges = True
    silent = False  # about the length
    content = CONTENT
    requests: list[str | None]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        content = self.server.content
        if self.path == "/gone":
            return self.send_error(404)
        if self.path in ("/moved", "/to-file"):
            self.send_response(302)
            self.send_header("Location", "/file" if self.path == "/moved" else "file:///etc/hostname")
            return self.end_headers()
        first = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.server.ranges else 0  # type: ignore[index]
        if first >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            return self.end_headers()
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        if not self.server.silent:
            self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first : self.server.cut])
        return None

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as made:
        made.requests = []
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture
def url(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "w.caffemodel"


def refused(*arguments: Any, **settings: Any) -> Error:
    with pytest.raises(Error) as caught:
        download(*arguments, **settings)
    return caught.value


def listed(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("silent", [False, True])
def test_whole_file(url: str, server: Server, path: pathlib.Path, silent: bool) -> None:
    server.silent = silent
    download(f"{url}/file", str(path), {"sha1": SHA1, **SUMS})
    assert path.read_bytes() == CONTENT and listed(path.parent) == [path.name] and server.requests == [None]


@pytest.mark.parametrize("ranges", [True, False])
def test_interrupted_download_continues(url: str, server: Server, path: pathlib.Path, ranges: bool) -> None:
    server.cut = 300_000
    problem = refused(f"{url}/file", str(path), SUMS)
    assert problem.fact == f"the connection ended after 300,000 of {len(CONTENT):,} bytes" and "run the command again" in str(problem.fix)
    assert not path.exists() and (path.parent / "w.caffemodel.part").read_bytes() == CONTENT[:300_000]
    server.cut, server.ranges = None, ranges
    download(f"{url}/file", str(path), SUMS)
    assert path.read_bytes() == CONTENT and listed(path.parent) == [path.name] and server.requests == [None, "bytes=300000-"]


def test_complete_partial_file_needs_no_bytes(url: str, server: Server, path: pathlib.Path) -> None:
    pathlib.Path(f"{path}.part").write_bytes(CONTENT)
    download(f"{url}/file", str(path), SUMS)
    assert path.read_bytes() == CONTENT and len(server.requests) == 1


def test_partial_file_that_is_too_long_is_replaced(url: str, server: Server, path: pathlib.Path) -> None:
    pathlib.Path(f"{path}.part").write_bytes(CONTENT + b"more")
    download(f"{url}/file", str(path), SUMS)
    assert path.read_bytes() == CONTENT and server.requests == [f"bytes={len(CONTENT) + 4}-", None]


@pytest.mark.parametrize("begun", [b"", b"another file"])
def test_wrong_sum_leaves_nothing(url: str, path: pathlib.Path, begun: bytes) -> None:
    wrong = {"sha1": "0" * 40} if not begun else SUMS
    if begun:
        pathlib.Path(f"{path}.part").write_bytes(begun)
    problem = refused(f"{url}/file", str(path), wrong)
    assert f"expected {next(iter(wrong.values()))}" in problem.fact and listed(path.parent) == []
    download(f"{url}/file", str(path), SUMS)  # the next try begins anew


def test_missing_file(url: str, path: pathlib.Path) -> None:
    problem = refused(f"{url}/gone", str(path), SUMS)
    assert problem.fact == "the server answers 404 Not Found" and "--from FILE" in str(problem.fix) and listed(path.parent) == []


def test_no_server(path: pathlib.Path, url: str, server: Server) -> None:
    server.server_close()
    assert "cannot be downloaded" in refused(f"{url}/file", str(path), SUMS).fact and listed(path.parent) == []


def test_redirection_is_followed_to_http_alone(url: str, path: pathlib.Path) -> None:
    download(f"{url}/moved", str(path), SUMS)
    path.unlink()
    assert "file:" in str(refused(f"{url}/to-file", str(path), SUMS)) and listed(path.parent) == []


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://host/file", "w.caffemodel"])
def test_other_addresses_are_refused(address: str, path: pathlib.Path) -> None:
    assert refused(address, str(path), SUMS).fact == "is no http or https address"


@pytest.mark.parametrize("silent", [False, True])
def test_size_is_bounded(url: str, server: Server, path: pathlib.Path, silent: bool) -> None:
    server.silent = silent
    assert "at most 500,000 are accepted" in refused(f"{url}/file", str(path), SUMS, max_bytes=500_000).fact
    part = pathlib.Path(f"{path}.part")
    assert not path.exists() and (not part.exists() or part.stat().st_size <= 500_000)


def test_full_disk_and_missing_folder(url: str, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cannot be written" in refused(f"{url}/file", str(path.parent / "no" / "w"), SUMS).fact

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    problem = refused(f"{url}/file", str(path), SUMS)
    assert problem.fact == "cannot be written: No space left on device" and "make room" in str(problem.fix)


def test_two_processes_do_not_write_one_file(url: str, path: pathlib.Path) -> None:
    lock = FileLock(pathlib.Path(f"{path}.part.lock"))
    assert lock.acquire() is None
    assert "is downloading it" in refused(f"{url}/file", str(path), SUMS).fact
    lock.release()


@pytest.mark.parametrize("suffix", [".part", ".part.lock"])
@pytest.mark.parametrize("whole", [True, False], ids=["to a file", "dangling"])
def test_links_are_not_followed(url: str, path: pathlib.Path, suffix: str, whole: bool) -> None:
    """A stranger's folder may have links to files of the user, or to names that are free."""
    victim = path.with_name("victim")
    if whole:
        victim.write_bytes(b"secret")
    path.with_name(path.name + suffix).symlink_to(victim)
    with pytest.raises(Error, match="it is a link, not a plain file") as caught:
        download(url, str(path), SUMS, len(CONTENT))
    assert str(caught.value.place) == f"{path}{suffix}" and not path.exists() and victim.exists() == whole
    assert not whole or victim.read_bytes() == b"secret"


def test_progress_on_a_terminal(url: str, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(fetch.log, "stderr", terminal)
    download(f"{url}/file", str(path), SUMS)
    assert "w.caffemodel" in terminal.getvalue() and "1.02M" in terminal.getvalue()


# -- the command ------------------------------------------------------------------------------------------------------


def get(*arguments: Any) -> int:
    return main(["zoo", "get", *map(str, arguments)])


@pytest.fixture
def here(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_get_downloads_and_says_what_it_is(url: str, here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("vgg16", "--url", f"{url}/file", "--sha256", SHA256.upper())
    assert get(*command) == 0
    printed = capsys.readouterr().out
    assert SHA256 in printed and "CC BY" in printed and "mean_value: 103.94" in printed
    assert listed(here / "vgg16") == ["VGG_ILSVRC_16_layers.caffemodel", "deploy.prototxt"]
    (here / "vgg16" / "deploy.prototxt").write_text("mine")
    assert get(*command) == 0 and "is there already" in capsys.readouterr().out
    assert (here / "vgg16" / "deploy.prototxt").read_text() == "mine"


def test_get_does_not_overwrite(url: str, here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "models").mkdir()
    (here / "models" / "bvlc_alexnet.caffemodel").write_bytes(b"mine")
    assert get("alexnet", "--url", f"{url}/file", "--to", "models") == 1
    assert WEIGHTS["alexnet"].sha1 in capsys.readouterr().err and (here / "models" / "bvlc_alexnet.caffemodel").read_bytes() == b"mine"


def test_get_from_a_file(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.bin").write_bytes(CONTENT)
    assert get("resnet50", "--from", "mine.bin") == 1
    assert f"--sha256 {SHA256}" in capsys.readouterr().err
    assert get("resnet50", "--from", "mine.bin", "--sha256", SHA256) == 0
    assert (here / "resnet50" / "ResNet-50-model.caffemodel").read_bytes() == CONTENT and "ResNet-50-deploy.prototxt" in capsys.readouterr().out
    assert get("caffenet", "--from", "mine.bin") == 1  # the published sha1 is another
    assert SHA1 in capsys.readouterr().err and not (here / "caffenet").exists()


def test_a_sum_that_the_user_accepts_is_recorded(url: str, server: Server, here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert get("vgg16", "--url", f"{url}/file") == 1  # without a terminal there is no question
    assert "--accept" in capsys.readouterr().err and not (here / "vgg16").exists()
    assert get("vgg16", "--url", f"{url}/file", "--accept") == 0
    file, record = here / "vgg16" / WEIGHTS["vgg16"].file, here / "vgg16" / f"{WEIGHTS['vgg16'].file}.sha256"
    assert SHA256 in capsys.readouterr().out and record.read_text() == f"{SHA256}  {file.name}\n" and file.read_bytes() == CONTENT
    assert get("vgg16") == 0 and "its sha256 is right" in capsys.readouterr().out
    file.unlink()
    server.content = CONTENT[::-1]
    assert get("vgg16", "--url", f"{url}/file") == 1
    assert f"expected {SHA256}" in capsys.readouterr().err and not file.exists()
    record.write_text("no sum")
    assert get("vgg16", "--url", f"{url}/file") == 1 and "it has no sum of sha256" in capsys.readouterr().err
    assert get("alexnet", "--url", f"{url}/file", "--accept") == 1  # the publisher prints a sum
    assert WEIGHTS["alexnet"].sha1 in capsys.readouterr().err and not (here / "alexnet").exists()


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_the_user_is_asked_on_a_terminal(answer: str, status: int, url: str, here: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    terminal = io.StringIO(answer)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    assert get("vgg16", "--url", f"{url}/file") == status
    said = capsys.readouterr()
    assert "prints no checksum (https://" in said.out and f"Download {url}/file once" in said.out and (here / "vgg16").exists() == (not status)


def test_an_accepted_file_of_ones_own(here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.bin").write_bytes(CONTENT)
    assert get("resnet50", "--from", "mine.bin", "--accept") == 0
    assert listed(here / "resnet50") == ["ResNet-50-model.caffemodel", "ResNet-50-model.caffemodel.sha256"]
    assert get("resnet50", "--from", "mine.bin") == 0


@pytest.mark.parametrize(("arguments", "words"), [
    (["vgg19"], ["the publisher of VGG_ILSVRC_19_layers.caffemodel prints no checksum", "--sha256 SUM"]),
    (["ssd300", "--sha256", SHA256], ["https://github.com/weiliu89/caffe/tree/ssd", "--from FILE"]),
    (["vgg19", "--sha256", "12"], ["--sha256 is '12'", "64 hexadecimal digits"]),
    (["vgg91"], ["no public weights 'vgg91'", "did you mean vgg19?"]),
    (["alexnet", "--from", "gone"], ["gone", "No such file"]),
    (["alexnet", "--from", "."], ["cannot be read: Is a directory"]),
    (["resnet18"], ["torch.onnx.export(torchvision.models.resnet18(weights='DEFAULT').eval()", "ocaffe convert resnet18.onnx resnet18.prototxt"]),
])  # fmt: skip
def test_mistakes(arguments: list[str], words: list[str], here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert get(*arguments) == 1
    said = capsys.readouterr().err
    assert all(word in said for word in words), said
    assert listed(here) == []


# -- the tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_have_licence_and_source(name: str) -> None:
    each = find_weights(name)
    assert each.licence and each.page.startswith("https://") and (each.url == "" or each.url.endswith(each.file))
    assert bool(each.sha1) == bool(each.printed_in) and re.fullmatch("([0-9a-f]{40})?", each.sha1)
    assert bool(each.net) != bool(each.prototxt) and each.net in ("", *names())


@pytest.mark.parametrize("name", ["vgg19", "resnet101", "resnet152"])
def test_weights_of_deep_nets_come_with_the_net_of_the_zoo(name: str, here: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "mine.bin").write_bytes(CONTENT)
    assert get(name, "--from", "mine.bin", "--sha256", SHA256) == 0
    assert f"net         {name}/deploy.prototxt" in capsys.readouterr().out
    assert (here / name / "deploy.prototxt").read_text().startswith('name: "')


def test_sums_are_those_of_the_readmes_of_bvlc() -> None:
    """From the front matter of models/*/readme.md in BVLC/caffe."""
    assert {name: each.sha1 for name, each in WEIGHTS.items() if each.sha1} == {
        "caffenet": "4c8d77deb20ea792f84eb5e6d0a11ca0a8660a46",
        "alexnet": "9116a64c0fbe4459d18f4bb6b56d647b63920377",
        "googlenet": "405fc5acd08a3bb12de8ee5e23a96bec22f08204",
    }


def test_names_of_torchvision_alone() -> None:
    assert not set(TORCHVISION) & set(WEIGHTS)


def test_list_of_nets_and_weights(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("ocaffe.cli.zoo.names", lambda: ["lenet", "resnet50"])  # all take seconds
    assert main(["zoo", "--batch", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines[:3]] == ["net", "lenet", "resnet50"] and "batch 2" in lines[0]
    row = lines[2]
    assert "3 x 224 x 224" in row and "25,557,032" in row and "7.72 G" in row
    assert {line.partition(" ")[0] for line in lines} >= set(WEIGHTS)


def test_list_of_nets_with_other_data(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("ocaffe.cli.zoo.names", lambda: ["mtcnn_rnet", "unet"])
    assert main(["zoo"]) == 0
    head, faces, pixels = capsys.readouterr().out.splitlines()[:3]
    assert faces.startswith("mtcnn_rnet  3 x 24 x 24") and "100,178" in faces and faces.endswith("MiB") and len(faces) == len(head)
    assert "1 x 512 x 512" in pixels and "31,030,658" in pixels and pixels.endswith("too large")  # 64 x 128 x 512 x 512 values


def test_memory_to_train_is_that_of_the_plan() -> None:
    """The figure of the list is a plan's, so it grows with the batch and has the weights, their gradients and their history."""
    two, four = figures("resnet20", 2), figures("resnet20", 4)
    assert two.training and four.training
    assert 3 * 4 * two.parameters < two.training < four.training and two.running < two.training
    assert template("resnet20").batch == 128 and two.flops == 81_626_368
