"""Nets of the zoo that read lines of text: convolutions, columns as time steps, LSTMs in both directions, and a CTC loss.

The layout is that of CRNN (Shi, Bai and Yao, 2015). The layers after the convolutions are those of caffe_ocr (senlinuc): Lstm without sequence
indicators, Reverse, WarpCTCLoss, CTCGreedyDecoder. Class 0 is the blank.
"""
from __future__ import annotations

from ocaffe.zoo.classifiers import conv_norm
from ocaffe.zoo.net import XAVIER, Fields, Net

TEXT = "examples/text/"
HEIGHT, WIDTH = 32, 128  # pixels
CLASSES = 11  # ten digits and the blank
LENGTH = 8  # most characters of a text
BATCH, TEST_BATCH = 32, 50
# channels, convolutions, pooling after them (height, width): 32 x 128 becomes 2 x 32
STAGES = ((24, 1, (2, 2)), (48, 1, (2, 2)), (96, 2, (2, 1)), (128, 1, (2, 1)))
CHANGES: Fields = {"rotation": 2, "translation": 0.02, "min_zoom": 0.85, "max_zoom": 1, "shear": 6, "border": "REPLICATE"}  # of the images in TRAIN
UNITS = 96  # of an LSTM


def lines_of_text(net: Net) -> str:
    """Add the data layers: gray images, and LENGTH labels for each."""
    if net.deploy:
        net.layers.append({"name": "data", "type": "Input", "top": "data", "input_param": {"shape": {"dim": [1, 1, HEIGHT, WIDTH]}}})
        return "data"
    for phase, part, batch in (("TRAIN", "train", BATCH), ("TEST", "val", TEST_BATCH)):
        source: Fields = {"source": f"{TEXT}{part}.txt", "root_folder": TEXT, "batch_size": batch} | ({"shuffle": True} if phase == "TRAIN" else {})
        net.layers.append({
            "name": "data", "type": "ImageData", "top": ["data", "label"], "include": {"phase": phase},
            "transform_param": {"mean_value": 128, "scale": 0.0078125} | ({"affine": CHANGES} if phase == "TRAIN" else {}),
            "image_data_param": {**source, "new_height": HEIGHT, "new_width": WIDTH, "is_color": False, "label_count": LENGTH},
        })  # fmt: skip
    return "data"


def lstm(net: Net, name: str, x: str) -> str:
    own: Fields = {"num_output": UNITS}
    if not net.deploy:
        own |= {"weight_filler": XAVIER, "bias_filler": {"type": "constant", "value": 0}}
    return net.layer("Lstm", name, x, lstm_param=own)


def crnn(net: Net) -> None:
    """CRNN with fewer channels, for lines of 32 x 128 pixels. CPUs train it in minutes."""
    x = lines_of_text(net)
    for stage, (channels, depth, window) in enumerate(STAGES, 1):
        for i in range(1, depth + 1):
            name = f"conv{stage}_{i}"
            x = net.relu(f"{name}/relu", conv_norm(net, name, x, channels, pad=1, kernel_size=3))
        x = net.pool(f"pool{stage}", x, "MAX", kernel_h=window[0], kernel_w=window[1], stride_h=window[0], stride_w=window[1])
    x = net.relu("columns/relu", conv_norm(net, "columns", x, STAGES[-1][0], kernel_h=2, kernel_w=1))
    x = net.layer("Permute", "steps", x, permute_param={"order": [3, 0, 1, 2]})  # T x N x channels x 1
    forward = lstm(net, "lstm", x)
    backward = lstm(net, "lstm_back", net.layer("Reverse", "steps_back", x, reverse_param={"axis": 0}))
    backward = net.layer("Reverse", "lstm_back_steps", backward, reverse_param={"axis": 0})
    x = net.dropout("both/dropout", net.layer("Concat", "both", [forward, backward], concat_param={"axis": 2}), 0.2)
    x = net.fc("scores", x, CLASSES, axis=2, weight=XAVIER, bias=0)
    if net.deploy:
        net.layer("CTCGreedyDecoder", "text", x)
        return
    net.layer("WarpCTCLoss", "loss", [x, "label"])
    test: Fields = {"include": {"phase": "TEST"}}
    right = net.layer("CTCGreedyDecoder", "decoder", [x, "label"], "right", **test)
    net.layers.append({"name": "shares", "type": "Slice", "bottom": right, "top": ["characters", "strings"], **test, "slice_param": {"axis": 1}})
