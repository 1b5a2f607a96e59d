"""ocaffe detect: write class scores of image windows to a .csv or .h5 file, as pycaffe's detect.py (R-CNN)."""
from __future__ import annotations

import csv
import io
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from tqdm import tqdm

from ocaffe.cli.classify import chosen_device, mean_of, net_flags, preprocessing, swap_channels
from ocaffe.cli.flags import Parser
from ocaffe.detector import Detector, Window
from ocaffe.errors import Error, Place
from ocaffe.shown import say, write_table
from ocaffe.support.files import atomic_write, text_lines, to_read
from ocaffe.support.parsing import reason

COLUMNS = ("ymin", "xmin", "ymax", "xmax")
Windows = list[tuple[str, Window]]


def main(argv: Sequence[str]) -> int:
    parser = Parser("detect", "Classify windows of images. The input is a .csv with the columns filename, ymin, xmin, ymax, xmax.")
    net_flags(parser, "deploy.prototxt", "bvlc_reference_caffenet.caffemodel", "")
    parser.flag("crop_mode", "selective_search", "'list': the windows of the .csv; 'selective_search' needs MATLAB and is not supported")
    parser.flag("context_pad", 16, "pixels of the net's input, on each side, that show the context of a window")
    options = parser.parse(argv)
    if options.crop_mode != "list":
        raise Error(
            f"--crop_mode is {options.crop_mode}, and only 'list' is done here: selective search is a MATLAB program",
            place="ocaffe detect",
            fix="--crop_mode list with a .csv of windows, by any proposal method",
        )
    if not options.output_file.lower().endswith((".csv", ".h5")):
        raise Error(f"the output is {options.output_file}", place="ocaffe detect", fix="give it a name that ends in .csv or .h5")
    windows = _read_windows(options.input_file)
    mean = mean_of(options)
    if mean is not None and mean.ndim == 3:
        mean = mean.mean((1, 2))  # windows can be anywhere, so use the mean of each channel
    device = chosen_device(options)
    try:
        pad = options.context_pad
        net = Detector(options.model_def, options.pretrained_model, context_pad=pad, keep=[], device=device, **preprocessing(options, mean))
        swap_channels(net, options)
        say("Loading input...")
        start = time.monotonic()
        found = net.detect_windows(_by_image(tqdm(windows, unit="window", disable=None)))
        net.close()
    finally:
        device.close()
    say(f"Processed {len(windows)} windows in {time.monotonic() - start:.3f} s.")
    scores = np.stack([detection["prediction"] for detection in found])
    (_write_csv if options.output_file.lower().endswith("csv") else _write_hdf5)(options.output_file, windows, scores)
    say(f"Saved to {options.output_file}.")
    return 0


def _read_windows(path: str) -> Windows:
    """Read the windows of a .csv, grouped by image."""
    windows: dict[str, list[Window]] = {}
    try:
        reader = csv.DictReader(text_lines(path, errors="strict", newline=""))
        missing = {"filename", *COLUMNS} - set(reader.fieldnames or ())
        if missing:
            raise Error(f"has no column {', '.join(sorted(missing))}", place=Place(path, 1), fix=f"make the first line filename,{','.join(COLUMNS)}")
        for row in reader:
            try:
                values = [int(float(row[column])) for column in COLUMNS]
            except (TypeError, ValueError, OverflowError):
                found = ",".join(str(row[column]) for column in COLUMNS)
                raise Error(f"'{found}' is no window", place=Place(path, reader.line_num), fix=f"write {', '.join(COLUMNS)} as numbers of pixels") from None
            windows.setdefault(row["filename"], []).append((values[0], values[1], values[2], values[3]))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        fact = "it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else f"cannot be read: {reason(problem, path)}"
        raise Error(fact, place=path, fix=to_read(path, problem, f"give a .csv of windows: filename,{','.join(COLUMNS)}")) from None
    if not windows:
        raise Error("has no window", place=path, fix=f"write a line filename,{','.join(COLUMNS)} for each window, behind the first line")
    return [(name, window) for name, found in windows.items() for window in found]


def _by_image(windows: Iterable[tuple[str, Window]]) -> Iterator[tuple[str, Iterator[Window]]]:
    """Yield each image with an iterator over its windows."""
    for name, group in itertools.groupby(windows, key=lambda item: item[0]):
        yield name, (window for _, window in group)


def _write_csv(path: str, windows: Windows, scores: np.ndarray) -> None:
    text = io.StringIO()
    rows = [[name, *window, *(repr(float(score)) for score in row)] for (name, window), row in zip(windows, scores)]
    write_table(text, [["filename", *COLUMNS, *(f"class{n}" for n in range(scores.shape[1]))], *rows])
    with atomic_write(path) as out:
        out.write(text.getvalue().encode())


def _write_hdf5(path: str, windows: Windows, scores: np.ndarray) -> None:
    """Write the datasets filename, window (columns ymin, xmin, ymax, xmax) and prediction."""
    import h5py

    with atomic_write(path) as out, h5py.File(out.name, "w") as file:
        file.create_dataset("filename", data=[name for name, _ in windows], dtype=h5py.string_dtype())
        file["window"] = np.array([window for _, window in windows], np.int64)
        file["prediction"] = scores
