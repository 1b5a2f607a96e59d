"""Recognise the kind of a file from its first bytes and its name. An error then names the kind of a wrong file, and the way from it to the right one."""
from __future__ import annotations

import codecs
import errno
from pathlib import PurePath
from typing import NamedTuple

from ocaffe.shown import command, path_word


class Kind(NamedTuple):
    """The kind of a file, as in 'it is a gzip archive', and the way to a file that ocaffe reads. '' if only the reader knows the way."""

    name: str
    way: str = ""


HEAD = 512  # bytes that decide the kind of a text
EMPTY, WEB_PAGE, GZIP, HDF5 = "empty", "a web page", "a gzip archive", "an HDF5 file"
POINTER, UTF16 = "a Git LFS pointer", "UTF-16 text"
NPY, NPZ = "a .npy file of numpy", "an .npz file of numpy"
_PACKED = ((b"\x1f\x8b", GZIP, ".gz", "gunzip"), (b"\xfd7zXZ", "an xz archive", ".xz", "unxz"), (b"\x28\xb5\x2f\xfd", "a zstd archive", ".zst", "unzstd"))
_BZIP2 = (b"BZh", "a bzip2 archive", ".bz2", "bunzip2")
_ARCHIVES = ((b"PK\x03\x04", "a zip archive", "unzip"), (b"7z\xbc\xaf", "a 7z archive", "7z x"), (b"Rar!\x1a\x07", "a rar archive", "unrar x"))
_PICTURES = (
    (b"\xff\xd8\xff", "a JPEG image"), (b"\x89PNG\r\n", "a PNG image"), (b"GIF8", "a GIF image"), (b"II*\0", "a TIFF image"), (b"MM\0*", "a TIFF image"),
)  # fmt: skip
_OTHERS = (
    (b"\x89HDF\r\n\x1a\n", HDF5), (b"\x93NUMPY", NPY), (b"MATLAB 5.0 MAT-file", "a .mat file of MATLAB"),
    (b"SQLite format 3\0", "an SQLite database"), (b"%PDF-", "a PDF file"), (b"PAR1", "a Parquet file"), (b"\x7fELF", "a program of Linux"),
    (b"PIEH", "a .flo file of Middlebury"), (b"PF\n", "a .pfm file"), (b"Pf\n", "a .pfm file"), (b"float\n", "a .float3 file"),
)  # fmt: skip
_TORCH = (".pt", ".pth", ".pt2", ".ckpt")
_TF2ONNX = {".tflite": ("a TensorFlow Lite model", "--tflite"), ".keras": ("a Keras model", "--keras"), ".pb": ("a TensorFlow graph", "--graphdef")}
_FOREIGN = {  # suffixes of other frameworks' files
    ".safetensors": "weights of safetensors, without a net", ".weights": "weights of Darknet", ".cfg": "a net of Darknet", ".params": "weights of MXNet",
    ".mlmodel": "a Core ML model", ".mlpackage": "a Core ML model", ".engine": "a TensorRT engine", ".plan": "a TensorRT engine", ".param": "a net of ncnn",
}  # fmt: skip


def kind_of(head: bytes, path: str = "") -> Kind | None:
    """Return the kind of the file `path` that begins with `head`. None if it is not one of those that are often taken for another file."""
    if not head:
        return Kind(EMPTY, "download or write it again")
    if is_web_page(head):
        return Kind(WEB_PAGE, "download the file itself; this is the page about it")
    if head.startswith(b"version https://git-lfs"):
        return Kind(POINTER, "run `git lfs pull` in its repository")
    if (head.startswith(b"PK\x03\x04") and (b"data.pkl" in head[:256] or PurePath(path).suffix.lower() in _TORCH)) or _is_pickle(head, path):
        return foreign(str(PurePath(path).with_suffix(".pth")) if path else "model.pth", path)
    if head.startswith(b"PK\x03\x04") and (path.lower().endswith(".npz") or b".npy" in head[:64]):
        return Kind(NPZ)
    if packed := unpacking(head, path):
        return packed
    for magic, name, tool in _ARCHIVES:
        if head.startswith(magic):
            return Kind(name, f"unpack it: {command(*tool.split(), path_word(path))}" if path else "unpack it")
    if head[257:262] == b"ustar":
        return Kind("a tar archive", f"unpack it: {command('tar', '-xf', path_word(path))}" if path else "unpack it")
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return Kind("a WebP image")
    if head[4:8] == b"TFL3":
        return foreign(str(PurePath(path).with_suffix(".tflite")) if path else "model.tflite", path)
    return next((Kind(name) for magic, name in (*_PICTURES, *_OTHERS) if head.startswith(magic)), None)


def is_text(head: bytes) -> bool:
    """Whether `head` is text, which has no control characters. The lengths and floats of a binary message always contain some."""
    return not any(byte < 32 and byte not in b"\t\n\r\f\v" for byte in head) and b"\x7f" not in head


def not_lines(head: bytes, path: str = "") -> Kind | None:
    """Return the kind of a file that is no text of lines, None for a text or an empty file. `head` is its first HEAD bytes.

    The first line can be a name that begins as a binary format does, such as GIF89a or PF. Binary formats have control characters in their first bytes.
    """
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and not is_text(head):
        return Kind(UTF16, "save it as UTF-8")
    kind = kind_of(head, path)
    return kind if kind is not None and kind.name != EMPTY and (kind.name in (WEB_PAGE, POINTER) or not is_text(head)) else None


def foreign(path: str, given: str = "") -> Kind | None:
    """Return the kind of another framework's file by the suffix of `path`, and the way to ONNX and to Caffe's files. None for other suffixes.

    `given` is the file's real name, if it has no such suffix.
    """
    suffix, stem, given = PurePath(path).suffix.lower(), path_word(PurePath(path).with_suffix("")), path_word(given or path)
    then = f"then: {command('ocaffe', 'convert', f'{stem}.onnx', f'{stem}.prototxt', f'{stem}.caffemodel')}"
    if suffix in _TORCH:
        return Kind("a PyTorch file", f"export the net in PyTorch: torch.onnx.export(model, images, {stem + '.onnx'!r}), with a batch as images; {then}")
    if suffix in _TF2ONNX:
        name, flag = _TF2ONNX[suffix]
        ends = " --inputs NAME:0 --outputs NAME:0, with the names of the graph" * (suffix == ".pb")
        return Kind(name, f"pip install tf2onnx; {command('python', '-m', 'tf2onnx.convert', flag, given, '--output', f'{stem}.onnx')}{ends}; {then}")
    if suffix in _FOREIGN:
        return Kind(_FOREIGN[suffix], f"export the net to ONNX in the program that it is of, as {stem}.onnx; {then}")
    return None


def unpacking(head: bytes, path: str, tar: bool = True) -> Kind | None:
    """Return the kind of a file that one of gzip, bzip2, xz and zstd packed, and the command that unpacks it. None for other files.

    `tar`: the command takes the files out of a .tar.gz too.
    """
    bzip2 = head[4:10] == b"1AY&SY"
    found = next((row for row in (*_PACKED, *([_BZIP2] if bzip2 else [])) if head.startswith(row[0])), None)
    if found is None:
        return None
    _, name, ending, tool = found
    if not path:
        return Kind(name, f"unpack it by {tool}")
    lower = path.lower()
    if tar and lower.endswith((f".tar{ending}", ".tgz", ".tbz2", ".txz")):
        return Kind(name, f"unpack it: {command('tar', '-xf', path_word(path))}")
    if lower.endswith((ending, ".tgz", ".tbz2", ".txz")):
        return Kind(name, f"unpack it: {command(tool, path_word(path))}")
    named = f"{path}{ending}"
    return Kind(name, f"unpack it: {command('mv', path_word(path), path_word(named))} && {command(tool, path_word(named))}")


class WrongKind(OSError):
    """A text file is expected, and another kind is found."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(errno.EINVAL, f"it is {kind.name}, not text")
        self.kind = kind


def is_picture(head: bytes) -> str:
    """Return the kind of an image file that begins with `head`, such as 'a JPEG image'. Return '' for other bytes."""
    kind = kind_of(head[:64]) if head else None
    return kind.name if kind is not None and kind.name.endswith(" image") else ""


def is_web_page(head: bytes) -> bool:
    return head[:200].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _is_pickle(head: bytes, path: str) -> bool:
    return head[:1] == b"\x80" and head[1:2] in b"\2\3\4\5" and PurePath(path).suffix.lower() in _TORCH
