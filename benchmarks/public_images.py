"""`ocaffe fit` with EfficientNet-Lite0's public weights, beside the same command from nothing, on images of Python packages.

    python benchmarks/public_images.py make FOLDER [--each 40]
    python benchmarks/public_images.py fit FOLDER OUT [--seeds 1 2 3] [-- flags of ocaffe fit]

`make` cuts pieces from one photo for each class and distorts them: place, size, angle, light, color, blur, noise. The photos are scikit-image's cat, coffee,
motorcycle and astronaut, and scikit-learn's flower. The packages are found by their names, and not imported. `fit` prints, for each seed, the accuracy, the
seconds, and the processor time.
"""
from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import resource
import subprocess
import sys
import time

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter

PHOTOS = {
    "cat": ("skimage", "data/chelsea.png"), "coffee": ("skimage", "data/coffee.png"), "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "astronaut": ("skimage", "data/astronaut.png"), "flower": ("sklearn", "datasets/images/flower.jpg"),
}  # fmt: skip
SIDE = 256  # of the pieces


def piece(photo: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A square of the photo, distorted."""
    side = int(min(photo.size) * rng.uniform(0.25, 0.6))
    left, top = (int(rng.integers(0, size - side)) for size in photo.size)
    made = photo.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    made = made.rotate(float(rng.normal(0, 25)), Image.Resampling.BICUBIC, fillcolor=tuple(int(v) for v in rng.integers(0, 255, 3)))
    for change in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        made = change(made).enhance(float(rng.uniform(0.3, 1.7)))
    channels = np.asarray(made, np.float32) * rng.uniform(0.6, 1.3, 3) + rng.normal(0, rng.uniform(2, 30), (SIDE, SIDE, 3))
    made = Image.fromarray(np.clip(channels, 0, 255).astype(np.uint8))
    return made.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 4)))) if rng.random() < 0.5 else made


def make(folder: pathlib.Path, each: int) -> None:
    rng = np.random.default_rng(61)
    for name, (package, file) in PHOTOS.items():
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            sys.exit(f"{package} is not installed")
        photo = Image.open(pathlib.Path(found.submodule_search_locations[0], file)).convert("RGB")
        (folder / name).mkdir(parents=True)
        for number in range(each):
            piece(photo, rng).save(folder / name / f"{number}.jpg", quality=int(rng.integers(50, 95)))


def fit(folder: pathlib.Path, out: pathlib.Path, seeds: list[int], flags: list[str]) -> None:
    rows = []
    for seed in seeds:
        started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        made = out / f"seed{seed}"
        command = [sys.executable, "-m", "ocaffe", "fit", str(folder), "--out", str(made), "--seed", str(seed), *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rows.append((json.loads((made / "results.json").read_text())["accuracy"], time.monotonic() - started, used))
        print(f"seed {seed}: accuracy {100 * rows[-1][0]:.1f} %, {rows[-1][1]:.0f} s, {used:.0f} s of processor time", flush=True)
    accuracy, seconds, used = np.mean(rows, axis=0)
    print(f"mean: accuracy {100 * accuracy:.1f} %, {seconds:.0f} s, {used:.0f} s of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "fit"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    parser.add_argument("--each", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    own = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    options = parser.parse_args(own)
    if options.what == "make":
        make(options.folder, options.each)
    else:
        fit(options.folder, options.out or options.folder.with_name("fits"), options.seeds, sys.argv[1 + len(own) :][1:])


if __name__ == "__main__":
    main()
