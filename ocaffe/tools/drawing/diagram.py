"""A picture of a net, as SVG or in any format that Pillow writes."""
from __future__ import annotations

import io
import struct
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from ocaffe.errors import Error
from ocaffe.shown import markup, visible
from ocaffe.tools.drawing.layout import Layout, Point, check_parts, layout

FONT, LINE, CHARACTER, PAD = 11, 15, 6.6, 9.0  # pixels: font size, line height, width of a character, padding of boxes
MARGIN = 16.0
SCALE = 2  # scale of raster images
COLORS = {
    "Data": "#cfd8dc", "Convolution": "#ffab91", "InnerProduct": "#b39ddb", "Pooling": "#ffe082", "Normalization": "#a5d6a7", "Loss": "#ef9a9a",
    "Accuracy": "#80cbc4", "Blob": "#ffffff", "": "#e3f2fd",
}  # fmt: skip
FAMILIES = (  # a substring of the type, and the family whose color it gets
    ("Data", "Data"), ("Input", "Data"), ("Convolution", "Convolution"), ("InnerProduct", "InnerProduct"), ("Pooling", "Pooling"), ("Norm", "Normalization"),
    ("LRN", "Normalization"), ("Scale", "Normalization"), ("Loss", "Loss"), ("Accuracy", "Accuracy"),
)  # fmt: skip
_MOST = 120  # characters of a line; a name in a file can have millions
_WINDOW = ("kernel_size", "kernel_h", "kernel_w", "stride", "stride_h", "stride_w", "pad", "pad_h", "pad_w", "dilation", "group")


class Node(NamedTuple):
    lines: list[str]
    color: str
    round: bool  # true for a blob, false for a layer


class Picture(NamedTuple):
    """Boxes (x, y, width, height) with their nodes, and curves with their labels; `size` is (width, height)."""

    size: Point
    boxes: list[tuple[tuple[float, float, float, float], Node]]
    curves: list[tuple[list[Point], str]]


def picture(net: Any, direction: str = "LR", rates: bool = False) -> Picture:
    """Return the picture of a NetParameter (upgraded; filtered or not) in `direction` LR, TB, RL or BT. `rates`: show lr_mult and decay_mult."""
    nodes, edges, names = _graph(net, rates)
    sizes = [(max(map(len, node.lines)) * CHARACTER + 2 * PAD, len(node.lines) * LINE + PAD) for node in nodes]
    level = direction in ("LR", "RL")
    found = layout([size if level else size[::-1] for size in sizes], edges)
    turn = _Turn(level, direction in ("RL", "BT"), found)
    boxes = []
    for node, (width, height), place in zip(nodes, sizes, found.places):
        x, y = turn(place)
        boxes.append(((x - width / 2, y - height / 2, width, height), node))
    curves = [([turn(point) for point in route], name) for route, name in zip(found.routes, names)]
    along, across = found.extent
    width, height = (along, across) if level else (across, along)
    return Picture((width + 2 * MARGIN, height + 2 * MARGIN), boxes, curves)


class _Turn(NamedTuple):
    """Converts (along, across) to (x, y)."""

    level: bool
    back: bool
    layout: Layout

    def __call__(self, point: Point) -> Point:
        along, across = point
        if self.back:
            along = self.layout.extent[0] - along
        return (along + MARGIN, across + MARGIN) if self.level else (across + MARGIN, along + MARGIN)


def _graph(net: Any, rates: bool) -> tuple[list[Node], list[tuple[int, int]], list[str]]:
    """Return nodes, edges, and the label of each edge: the blob if its layer has several tops, else empty."""
    nodes = [Node(_text(layer, rates), COLORS[next((family for part, family in FAMILIES if part in layer.type), "")], False) for layer in net.layer]
    edges: list[tuple[int, int]] = []
    names: list[str] = []
    producers: dict[str, list[int]] = {}  # several if layers of different phases produce the same blob
    used: set[tuple[str, int]] = set()

    def connect(blob: str, target: int) -> None:
        for source in producers.get(blob, ()):
            used.add((blob, source))
            edges.append((source, target))
            names.append(_line(blob) if len(net.layer[source].top) > 1 else "")
        check_parts(len(edges))

    for index, layer in enumerate(net.layer):
        for blob in layer.bottom:
            connect(blob, index)
        for blob in layer.top:
            if blob in layer.bottom:
                producers[blob] = []
            producers.setdefault(blob, []).append(index)
    for blob, sources in producers.items():
        left = [source for source in sources if (blob, source) not in used]
        if left:
            nodes.append(Node([_line(blob)], COLORS["Blob"], True))
            for source in left:
                edges.append((source, len(nodes) - 1))
                names.append("")
    return nodes, edges, names


def _text(layer: Any, rates: bool) -> list[str]:
    lines = [_line(layer.name), _line(f"({layer.type})")]
    for field, value in layer.ListFields():
        if field.name.endswith("_param") and hasattr(value, "ListFields"):
            settings = {inner.name: setting for inner, setting in value.ListFields()}
            if settings.get("num_output"):
                lines.append(f"num_output: {settings['num_output']}")
            if field.name == "pooling_param":
                lines.append(value.DESCRIPTOR.fields_by_name["pool"].enum_type.values_by_number[value.pool].name)
            window = [f"{name.replace('_size', '')} {_number(settings[name])}" for name in _WINDOW if settings.get(name)]
            if window:
                lines.append(_line(", ".join(window)))
    if rates and layer.param:
        rates_text = "lr " + ", ".join(f"{spec.lr_mult:g}" for spec in layer.param) + "; decay " + ", ".join(f"{spec.decay_mult:g}" for spec in layer.param)
        lines.append(_line(rates_text))
    return lines


def _line(text: str) -> str:
    """Return a text of the net as one line, before it is measured: hidden characters are escapes, and a long text ends in dots."""
    return visible(text) if len(text) <= _MOST else visible(text[: _MOST - 3]) + "..."


def _number(value: Any) -> str:
    return str(value) if isinstance(value, int) else "x".join(map(str, value))


def svg(drawn: Picture, title: str) -> str:
    width, height = drawn.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.1f} {height:.1f}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}">',
        f"<title>{markup(title)}</title>",
        '<defs><marker id="arrow" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto"><path d="M0 0 L7 3 L0 6 z" fill="#555"/></marker></defs>',
        f'<rect width="{width:.1f}" height="{height:.1f}" fill="white"/>',
    ]
    for points, name in drawn.curves:
        steps = " ".join(f"L{x:.1f} {y:.1f}" for x, y in points[1:])
        parts.append(f'<path d="M{points[0][0]:.1f} {points[0][1]:.1f} {steps}" fill="none" stroke="#555" stroke-linejoin="round" marker-end="url(#arrow)"/>')
        if name:
            x, y = _middle(points)
            parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="#555" font-size="{FONT - 2}">{markup(name)}</text>')
    for (x, y, wide, high), node in drawn.boxes:
        corner = high / 2 if node.round else 4
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="{corner:.1f}" fill="{node.color}" stroke="#555"/>')
        for number, line in enumerate(node.lines):
            weight = ' font-weight="bold"' if number == 0 and not node.round else ""
            top = y + PAD / 2 + LINE * number + FONT
            parts.append(f'<text x="{x + wide / 2:.1f}" y="{top:.1f}" text-anchor="middle"{weight}>{markup(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def pixels(drawn: Picture, file_format: str) -> bytes:
    """Return the picture as a file in a format of Pillow. Raise Error if the format does not take its size or its colors."""
    image = Image.new("RGB", (round(drawn.size[0] * SCALE), round(drawn.size[1] * SCALE)), "white")
    draw = ImageDraw.Draw(image)
    font, small = ImageFont.load_default(FONT * SCALE), ImageFont.load_default((FONT - 2) * SCALE)
    for points, name in drawn.curves:
        scaled = [(x * SCALE, y * SCALE) for x, y in points]
        draw.line(scaled, "#555555", SCALE, joint="curve")
        draw.polygon(_head(scaled), "#555555")
        if name:
            x, y = _middle(points)
            draw.text((x * SCALE, y * SCALE), name, "#555555", small, anchor="ms")
    for (x, y, wide, high), node in drawn.boxes:
        box = [x * SCALE, y * SCALE, (x + wide) * SCALE, (y + high) * SCALE]
        draw.rounded_rectangle(box, (high / 2 if node.round else 4) * SCALE, node.color, "#555555", SCALE)
        for number, line in enumerate(node.lines):
            draw.text(((x + wide / 2) * SCALE, (y + PAD / 2 + LINE * number + FONT) * SCALE), line, "black", font, anchor="ms")
    out = io.BytesIO()
    try:
        image.save(out, file_format)
    except (OSError, ValueError, OverflowError, struct.error, SystemError) as problem:  # whichever the writer of the format raises
        fact = f"a picture of {image.width} x {image.height} pixels cannot be written as {file_format}: {problem}"
        raise Error(fact, fix="give the picture a name that ends in .svg or .png") from None
    return out.getvalue()


def _middle(points: list[Point]) -> Point:
    """Return the position of a curve's label: above the middle of its first segment."""
    (x, y), (to_x, to_y) = points[:2]
    return (x + to_x) / 2, (y + to_y) / 2 - 3


def _head(points: list[Point]) -> list[Point]:
    """Return the triangle of the arrow head at the end of a curve."""
    (x, y), (to_x, to_y) = points[-2:]
    length = max(((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5, 1e-6)
    ax, ay = (to_x - x) / length * 7 * SCALE, (to_y - y) / length * 7 * SCALE
    return [(to_x, to_y), (to_x - ax - ay * 0.43, to_y - ay + ax * 0.43), (to_x - ax + ay * 0.43, to_y - ay - ax * 0.43)]
