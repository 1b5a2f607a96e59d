"""Writes the charts of the README (docs/charts) and the tables of docs/performance.md from benchmarks/*.json: `python docs/make_performance.py`.

A chart is one SVG for light pages and one for dark pages. A table is between `<!-- table NAME -->` and `<!-- end -->`.
The text around it is written by hand.
"""
from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

DOCS = pathlib.Path(__file__).parent
PAGE, CHARTS, BENCHMARKS = DOCS / "performance.md", DOCS / "charts", DOCS.parent / "benchmarks"
PEERS = {"fp32": "strict", "tf32": "tf32", "bf16": "autocast"}  # PyTorch's settings for a math of ocaffe (benchmarks/torch_net.py)
TITLES = {"lenet": "LeNet", "alexnet": "AlexNet", "googlenet": "GoogLeNet", "vgg16": "VGG-16", "resnet18": "ResNet-18", "resnet50": "ResNet-50",
          "mobilenet_v1": "MobileNet-v1", "mobilenet_v2": "MobileNet-v2", "cifar10_quick": "CIFAR-10 quick"}  # fmt: skip
# Okabe and Ito's colors: people with any kind of color blindness can tell them apart.
THEMES = {
    "light": {"text": "#1f2328", "faint": "#d0d7de", "series": ("#0072b2", "#e69f00", "#8c959f", "#009e73")},
    "dark": {"text": "#e6edf3", "faint": "#3d444d", "series": ("#56b4e9", "#e69f00", "#768390", "#2bc494")},
}


class Chart(NamedTuple):
    """A bar chart: for each group (a net) one bar of each series. `line` is a reference value, such as PyTorch's time."""

    title: str
    unit: str
    series: Sequence[str]
    groups: Sequence[tuple[str, Sequence[float]]]
    line: tuple[float, str] | None = None


def read(name: str) -> Any:
    return json.loads((BENCHMARKS / f"{name}.json").read_text())


def svg(chart: Chart, theme: str) -> str:
    """Draw horizontal bars with their values. The widths fit 720 units."""
    colors = THEMES[theme]
    left, width, bar, gap = 130, 500, 14, 12
    top = 56
    largest = max(value for _, values in chart.groups for value in values)
    scale = width / max(largest, chart.line[0] if chart.line else 0)
    group = bar * len(chart.series) + gap
    height = top + group * len(chart.groups) + (26 if chart.line else 8)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720" height="{height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{chart.title}</title>",
        f'<g fill="{colors["text"]}"><text x="8" y="18" font-size="15" font-weight="600">{chart.title}</text>',
    ]
    place = left
    for name, color in zip(chart.series, colors["series"]):
        parts.append(f'<rect x="{place}" y="31" width="11" height="11" fill="{color}"/><text x="{place + 17}" y="41">{name}</text>')
        place += 40 + 7 * len(name)
    if chart.line:
        x, end = left + chart.line[0] * scale, height - 20
        parts.append(f'<line x1="{x:.1f}" y1="{top - 4}" x2="{x:.1f}" y2="{end}" stroke="{colors["text"]}" stroke-dasharray="4 3"/>')
        parts.append(f'<text x="{x:.1f}" y="{end + 15}" text-anchor="middle">{chart.line[1]}</text>')
    for row, (name, values) in enumerate(chart.groups):
        y = top + row * group
        parts.append(f'<text x="{left - 8}" y="{y + bar * len(values) / 2 + 4.5:.1f}" text-anchor="end">{name}</text>')
        for index, (value, color) in enumerate(zip(values, colors["series"])):
            label = f"{value:.2f}" if chart.line else f"{value:.1f}"
            at = y + index * bar
            parts.append(f'<rect x="{left}" y="{at}" width="{value * scale:.1f}" height="{bar - 2}" rx="2" fill="{color}"/>')
            parts.append(f'<text x="{left + value * scale + 6:.1f}" y="{at + 10.5}" font-size="12">{label}{"" if chart.line else " " + chart.unit}</text>')
    parts.append(f'</g><line x1="{left}" y1="{top - 4}" x2="{left}" y2="{top + group * len(chart.groups) - gap + 4}" stroke="{colors["faint"]}"/></svg>')
    return "\n".join(parts) + "\n"


def memory_chart() -> Chart:
    peaks = read("torch_peaks_h100")
    nets = ["resnet50 64", "mobilenet_v2 64", "vgg16 64", "googlenet 64", "alexnet 256"]
    rows = {f"{row['net']} {row['batch']}": row for row in read("memory") if row["phase"] == "TRAIN" and not row["limit"]}
    sizes = {net: [rows[net]["mib"], rows[net]["without_recompute_mib"], peaks[net], rows[net]["caffe_mib"]] for net in nets}
    groups = [(f"{TITLES[net.split()[0]]}, {net.split()[1]}", [mib / 1024 for mib in sizes[net]]) for net in nets]
    names = ["ocaffe, recomputing", "ocaffe, keeping all", "PyTorch", "Caffe (estimate)"]
    return Chart("Memory to train, by net and batch (less is better)", "GiB", names, groups)


def cpu_chart() -> Chart:
    rows = [row for row in read("cpu")["rows"] if row["phase"] == "TRAIN"]
    groups = [(f"{TITLES[row['net']]}, {row['batch']}", [row["intel"] / row["torch"], row["pocl"] / row["torch"]]) for row in rows]
    return Chart("Time of a training step on two CPU cores, PyTorch = 1 (less is better)", "", ["Intel's OpenCL", "PoCL"], groups, (1, "PyTorch"))


def gpu_rows(phase: str, batch: int = 64) -> list[dict[str, Any]]:
    return [row for row in read("gpu_h100")["rows"] if (row["phase"], row["batch"], row["mode"]) == (phase, batch, "resident") and "PyTorch" in row]


def gpu_chart() -> Chart:
    rows = [row for row in gpu_rows("TRAIN") if row["PyTorch"].keys() >= set(PEERS.values())]
    groups = [(TITLES[row["net"]], [row[math] / row["PyTorch"][peer]["best"] for math, peer in PEERS.items()]) for row in rows]
    return Chart("Time of a training step on an H100, batch 64, PyTorch's fastest measured way = 1 (less is better)", "", list(PEERS), groups, (1, "PyTorch"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(["| " + " | ".join(line) + " |" for line in (head, *rows)]).replace("\n", "\n" + "|---" * len(head) + "|\n", 1)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _ratio(ours: float | None, other: float | None) -> str:
    return f"{ours / other:.2f}" if ours is not None and other is not None else ""


def memory_table() -> str:
    peaks = read("torch_peaks_h100")
    rows = []
    for row in read("memory"):
        if row["phase"] == "TRAIN":
            peak = "" if row["limit"] else str(peaks.get(f"{row['net']} {row['batch']}", ""))
            limit, share = row["limit"] and f"`{row['limit']}`", f"{100 * row['mib'] / row['caffe_mib']:.0f} %"
            kept = "" if row["limit"] else f"{row['without_recompute_mib']:.0f}"
            rows.append([TITLES[row["net"]], str(row["batch"]), limit, f"{row['mib']:.0f}", kept, peak, f"{row['caffe_mib']:.0f}", share])
    return table(["net", "batch", "limit", "ocaffe, MiB", "keeping all", "PyTorch", "Caffe", "share of Caffe's"], rows)


def cpu_table() -> str:
    rows = []
    for row in read("cpu")["rows"]:
        what = "training" if row["phase"] == "TRAIN" else "forward"
        rows.append([TITLES[row["net"]], what, str(row["batch"]), _ms(row["intel"]), _ratio(row["intel"], row["torch"]),
                     _ratio(row["intel"], row.get("onnxruntime")), _ms(row["pocl"]), _ratio(row["pocl"], row["torch"])])  # fmt: skip
    return table(["net", "pass", "batch", "Intel's runtime, ms", "/ PyTorch", "/ onnxruntime", "PoCL, ms", "/ PyTorch"], rows)


def start_table() -> str:
    rows = [[TITLES[row["net"]], str(row["batch"]), row["device"], *(f"{row[key]:.1f} s" for key in ("warm_s", "installed_s", "cold_s"))]
            for row in read("start")]  # fmt: skip
    return table(["net", "batch", "device", "warm", "with bytecode", "empty caches"], rows)


def gpu_table(phase: str) -> str:
    found = gpu_rows(phase)
    maths = {math: peer for math, peer in PEERS.items() if any(math in row and peer in row["PyTorch"] for row in found)}
    rows = []
    for row in found:
        cells = [TITLES[row["net"]]]
        for math, peer in maths.items():
            other = row["PyTorch"].get(peer, {})
            cells += [_ms(row.get(math)), f"{_ms(other['best'])} {other['way']}" if other else "", _ratio(row.get(math), other.get("best")),
                      _ratio(row.get(math), other.get("default"))]  # fmt: skip
        rows.append([*cells, *([_ms(row.get("ieee"))] if phase == "TRAIN" else [])])
    head = ["net", *(name for math in maths for name in (math, "PyTorch", "ratio", "to default"))]
    return table([*head, *(["`--math ieee`"] if phase == "TRAIN" else [])], rows)


def copies_table() -> str:
    found: dict[str, dict[str, float]] = {}
    for row in read("gpu_h100")["rows"]:
        if row["mode"] != "resident":
            found.setdefault(row["net"], {})[f"{row['phase']} {row['mode']}"] = row["fp32"]
    rows = [[TITLES[net], *(_ms(values.get(key)) for key in ("TRAIN io", "TEST io", "TEST pageable"))] for net, values in found.items()]
    return table(["net", "training, pinned memory", "forward, pinned memory", "forward, ordinary arrays"], rows)


def small_table() -> str:
    best = {row["net"]: row["PyTorch"]["strict"]["best"] for row in gpu_rows("TRAIN", 16)}
    rows = [[TITLES[row["net"]], _ms(row["fp32"]), _ms(best[row["net"]]), _ratio(row["fp32"], best[row["net"]])] for row in gpu_rows("TRAIN", 16)]
    return table(["net", "fp32", "PyTorch in fp32", "ratio"], rows)


def ranks_table() -> str:
    rows = []
    for name, row in read("ranks_h200").items():
        net, math = name.split()
        shares = [f"{100 * row[kind]['efficiency']:.1f} %" for kind in ("nccl", "mpi", "torch DDP")]
        times = [_ms(row[kind]["ms"]) for kind in ("alone", "torch alone")]
        rows.append([TITLES[net], math, *times, *shares, *(str(row[kind]["MiB"]) for kind in ("alone", "nccl", "torch alone", "torch DDP"))])
    shares, sizes = ["efficiency of two, nccl", "mpi", "PyTorch DDP"], ["MiB of one", "of each of two, nccl", "PyTorch, one", "DDP"]
    return table(["net", "math", "one device, ms", "PyTorch, ms", *shares, *sizes], rows)


CHART_OF = {"memory": memory_chart, "cpu": cpu_chart, "h100": gpu_chart}
TABLE_OF = {
    "memory": memory_table, "cpu": cpu_table, "start": start_table, "h100 training": lambda: gpu_table("TRAIN"), "h100 forward": lambda: gpu_table("TEST"),
    "h100 copies": copies_table, "h100 batch 16": small_table, "ranks": ranks_table,
}  # fmt: skip


def page() -> str:
    """Return the page with new tables."""

    def new(found: re.Match[str]) -> str:
        return f"<!-- table {found[1]} -->\n{TABLE_OF[found[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table (.*?) -->\n.*?<!-- end -->", new, PAGE.read_text(), flags=re.S)


def charts() -> dict[pathlib.Path, str]:
    """Return the text of each chart by its file."""
    return {CHARTS / f"{name}-{theme}.svg": svg(chart(), theme) for name, chart in CHART_OF.items() for theme in THEMES}


if __name__ == "__main__":
    CHARTS.mkdir(exist_ok=True)
    for path, text in charts().items():
        path.write_text(text)
    PAGE.write_text(page())
