"""Names of files and of others' data are safe in each medium: a terminal, a log, HTML, SVG, graphviz, Markdown, a prototxt, a shell, CSV, JSON."""
from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ocaffe import proto
from ocaffe.cli import main
from ocaffe.errors import Error, Place
from ocaffe.formats.text import parse, write_text
from ocaffe.shown import Lines, cell, code_span, command, json_text, lines_of, literal, markdown, markup, path_word, say, visible, write, write_table
from ocaffe.support import log
from ocaffe.tools.training_logs.logs import read_log

pytestmark = pytest.mark.quick
HOSTILE = [
    "\x1b]0;owned\x07\x1b[2J", "a\x00b", "a\rb", "a\x7fb", "a\x9b31mb", "a\x85b", "a\u2028b", "a\u2029b", "evil\u202egnp.exe", "a\u2066b\u2069",
    "a\u200bb", "a\ufeffb", "a\udcffb", "I1129 00:00:00.000000 1 solver.cpp:239] Iteration 7, loss = 0", "x\nerror: forged",
    "x\nI1129 00:00:00.000000     1 solver.cpp:239] Iteration 7, loss = 0", "$(id)", "`id`", "a b", "-rf",
    "a;b", "a'b", 'a"b', "a\\b", "a\\", "a|b", "<b>&amp;",
    "]]>", "{", "}", "=1+1", "+1+cmd|' /C calc'!A0", "@SUM(1)", "-1+1", "\t=1", "%s%n", "{0}", "$x^2$", "ä日本",
]  # fmt: skip
HIDDEN = set("\x00\x07\x08\x0b\r\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066\u2069\u200b\ufeff\udcff")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_terminal_and_a_log_get_one_line(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    say(f"file {name}.")
    log.tell(f"file {name}.", mark="error:")
    error = Error(f"fact {name}", place=Place(name, 3), layer=f"'{name}'", fix=name)
    log.tell(str(error), mark="error:")
    with log.into(str(tmp_path / "log")):
        log.info("net.cpp:1", f"layer {name}")
        log.info("net.cpp:1", f"error {error}")
    printed = capsys.readouterr()
    written = (tmp_path / "log").read_text()
    for text, lines in ((printed.out, 1), (printed.err, 1 + 3), (written, 2)):
        assert text.count("\n") == lines
        assert not HIDDEN & set(text)
    assert all(line.partition("] ")[0].endswith("net.cpp:1") for line in written.splitlines())
    assert not [line for line in (printed.out + printed.err).splitlines() if line.startswith(("I1129", "error: forged"))]


def test_what_is_shown_names_the_character() -> None:
    assert visible("a\n\x1b[0m\u202e\udcffé\t\U000e0041") == "a\\n\\x1b[0m\\u202e\\xffé\t\\U000e0041"


def test_lines_stay_lines() -> None:
    text = Lines("one", "two\nthree", lines_of("four\nfive"))
    assert text.split("\n") == ["one", "two\\nthree", "four", "five"]
    copy = pickle.loads(pickle.dumps(text))
    assert copy == text and isinstance(copy, Lines)
    assert str(Error(Lines("a", "  b"), fix="c")) == "a\n  b\n  fix: c"
    assert str(Error(text + "\nsix")).count("\n") == 0  # only what is made as Lines has line breaks


def test_a_stream_of_ascii() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    write(stream, "日本")
    write(None, "a closed stream")
    stream.flush()
    assert stream.buffer.getvalue() == b"\\u65e5\\u672c\n"  # type: ignore[attr-defined]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_shell_reads_a_command_as_its_words(name: str, shell: str) -> None:
    program = shutil.which(shell)
    if program is None or "\0" in name:  # no name of a file has it
        pytest.skip("there is no such shell, or no such name")
    text = command("printf", "%s\\n", path_word(name), "end")
    assert visible(text) == text  # it can be copied as it is shown
    said = subprocess.run([program, "-c", text], capture_output=True, check=True).stdout
    assert said == f"{path_word(name)}\nend\n".encode("utf-8", "surrogateescape").replace("\udcff".encode("utf-8", "surrogatepass"), b"\xff")


@pytest.mark.parametrize("name", HOSTILE)
def test_markup_has_no_tags_of_a_name(name: str) -> None:
    found: list[tuple[str, str]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, str(dict(attrs))))

        def handle_data(self, data: str) -> None:
            found.append(("", data))

    Reader().feed(f'<p title="{markup(name)}">{markup(name)}</p>')
    assert found == [("p", str({"title": visible(name)})), ("", visible(name))]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_table_of_markdown_keeps_its_cells(name: str) -> None:
    for text in (markdown(name), code_span(name)):
        assert "\n" not in text and not HIDDEN & set(text)
        assert text.replace("\\|", "").count("|") == 0
    assert "<" not in markdown(name).replace("\\<", "")
    assert code_span("a``b") == "``` a``b ```"


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\udcff" not in name])
def test_a_prototxt_reads_names_back(name: str) -> None:
    text = write_text(proto.NetParameter(name=name))
    assert parse(text, proto.NetParameter).name == name
    assert not HIDDEN & set(text) and text.count("\n") == 1
    assert parse(f"name: {literal(name)}", proto.NetParameter).name == name


@pytest.mark.parametrize("name", HOSTILE)
def test_a_spreadsheet_computes_no_name(name: str) -> None:
    stream = io.StringIO()
    write_table(stream, [["name", "loss"], [name, -1.5]])
    rows = list(csv.reader(io.StringIO(stream.getvalue())))
    assert [len(row) for row in rows] == [2, 2] and rows[1][1] == "-1.5"
    assert not rows[1][0].startswith(("=", "+", "-", "@", "\t"))
    assert (cell("-1.5e-3"), cell("+2"), cell("nan"), cell("-inf"), cell("cat")) == ("-1.5e-3", "+2", "nan", "-inf", "cat")


@pytest.mark.parametrize("name", HOSTILE)
def test_json_is_ascii(name: str) -> None:
    text = json_text({"name": name}, indent=1)
    assert json.loads(text) == {"name": name} and visible(text.replace("\n", "")) == text.replace("\n", "")


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\udcff" not in name])
def test_commands_show_hostile_names_of_layers(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = proto.NetParameter(name=name)
    net.layer.add(name=f"data{name}", type="Input", top=["data"]).input_param.shape.add(dim=[1, 3, 4, 4])
    layer = net.layer.add(name=f"conv{name}", type="InnerProduct", bottom=["data"], top=[f"top{name}"])
    layer.inner_product_param.num_output = 2
    path = tmp_path / "net.prototxt"
    path.write_text(write_text(net))
    blob = layer.blobs.add(data=[0.0] * 96)
    blob.shape.dim.extend((2, 48))
    (tmp_path / "w.caffemodel").write_bytes(net.SerializeToString())
    page, picture = tmp_path / "plan.html", tmp_path / "net.svg"
    for words in (
        ["plan", "--model", str(path), "--html", str(page)], ["summary", str(path)], ["lint", str(path)], ["draw_net", str(path), str(picture)],
        ["convert", "--summary", str(tmp_path / "w.caffemodel")], ["layers", name], ["new", name], [name],
    ):  # fmt: skip
        main(words)
    printed = capsys.readouterr()
    assert not HIDDEN & set(printed.out + printed.err + page.read_text() + picture.read_text())
    assert not [line for line in (printed.out + printed.err).splitlines() if line.startswith(("I1129", "error: forged"))]
    assert "<b>" not in page.read_text() + picture.read_text()


def test_a_name_forges_no_record_of_a_log(tmp_path: Path) -> None:
    """A reader of logs finds what the training said, and not what a name says."""
    with log.into(str(tmp_path / "log")):
        log.info("solver.cpp:239", "Iteration 0 (0 iter/s), loss = 1")
        forged = "x\nI1129 00:00:00.000000     1 solver.cpp:239] Iteration 9 (1 iter/s), loss = 0 "
        log.info("solver.cpp:239", f"    Train net output #0: {forged} = 5 (* 1 = 5 loss)")
        log.info("sgd_solver.cpp:112", "Iteration 0, lr = 0.01")
    found = read_log(str(tmp_path / "log"))
    assert {row["NumIters"] for rows in (found.train, found.loss, found.rates) for row in rows} == {0.0}


def test_a_graph_of_pydot_ends_its_names() -> None:
    pydot_graph = pytest.importorskip("ocaffe.tools.drawing.pydot_graph")
    assert pydot_graph._quoted('a"b\\') == '"a\\"b\\\\"'
    assert pydot_graph._quoted("a\n\x1b") == '"a\\\\n\\\\x1b"'
    assert pydot_graph._quoted("a", "b", between=r"\n") == r'"a\nb"'


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_plots_write_names_as_they_are(kind: str) -> None:
    """A text between two dollars would be a formula of matplotlib, and a damaged formula an exception."""
    pytest.importorskip("matplotlib")
    from ocaffe.tools.drawing.plots import Curve, render

    name = "$\\frac$ <b>\x1b[0m"
    page = render({name: [Curve(name, name, False, [0.0, 1.0], [1.0, 2.0])]}, kind).decode()
    assert "<b>" not in page and "\x1b" not in page
