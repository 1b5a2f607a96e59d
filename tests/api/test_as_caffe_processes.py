"""Scripts under ocaffe.as_caffe whose processes multiprocessing starts: by every method, the children find the module caffe, and no Pool hangs."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
METHODS = ("spawn", "forkserver", "fork")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has only one method")
WORK = """
import caffe
from caffe.proto import caffe_pb2

def work(number):
    import caffe.io
    return caffe.TEST + number + len(caffe_pb2.NetParameter().layer) + (caffe.__name__ != "ocaffe")
"""
# Each prints [1, 2, 3, 4].
RUNS = {
    "Pool of a context": "import multiprocessing as mp\nwith mp.get_context('{method}').Pool(2) as pool: print(pool.map_async(work, range(4)).get(60))",
    "Pool": "import multiprocessing as mp\nmp.set_start_method('{method}')\nwith mp.Pool(2) as pool: print(pool.map(work, range(4)))",
    "ProcessPoolExecutor": (
        "import concurrent.futures as cf, multiprocessing as mp\n"
        "with cf.ProcessPoolExecutor(2, mp_context=mp.get_context('{method}')) as pool: print(list(pool.map(work, range(4))))"),
    "Process": (
        "import multiprocessing as mp\ncontext = mp.get_context('{method}')\nqueue = context.SimpleQueue()\n"
        "children = [context.Process(target=put, args=(queue, i)) for i in range(4)]\nfor child in children: child.start()\n"
        "for child in children: child.join()\nprint(sorted(queue.get() for _ in range(4)))"),
}  # fmt: skip


def script(run: str, method: str) -> str:
    lines = RUNS[run].format(method=method).split("\n")
    put = "def put(queue, number): queue.put(work(number))\n"
    return "\n".join([WORK, put, "if __name__ == '__main__':", *(f"    {line}" for line in lines), ""])


def output(words: list[str], folder: Path, path: str = str(ROOT)) -> str:
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("run", sorted(RUNS))
def test_a_script(run: str, method: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "my script.py").write_text(script(run, method))
    assert output(["-m", "ocaffe.as_caffe", "folder/my script.py"], tmp_path) == "[1, 2, 3, 4]\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_module(method: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "tool.py").write_text(script("Pool", method))
    assert output(["-m", "ocaffe.as_caffe", "-m", "package.tool"], tmp_path) == "[1, 2, 3, 4]\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_text(method: str, tmp_path: Path) -> None:
    """As in Python, the children of a text import its functions from a module."""
    (tmp_path / "tool.py").write_text(WORK)
    text = f"import sys; from tool import work; import multiprocessing as mp\nif __name__ == '__main__':\n    assert sys.argv == ['-c', 'a', 'b']\n" \
           f"    with mp.get_context('{method}').Pool(2) as pool: print(pool.map(work, range(4)))"
    assert output(["-m", "ocaffe.as_caffe", "-c", text, "a", "b"], tmp_path) == "[1, 2, 3, 4]\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_script_that_installs_it_itself(method: str, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(WORK)
    lines = RUNS["Pool of a context"].format(method=method).split("\n")
    lines = ["import ocaffe", "ocaffe.install_as_caffe()", "from other import work", *lines]
    (tmp_path / "script.py").write_text("\n".join(["if __name__ == '__main__':", *(f"    {line}" for line in lines), ""]))
    assert output(["script.py"], tmp_path) == "[1, 2, 3, 4]\n"


@pytest.mark.parametrize("method", METHODS)
def test_ocaffe_in_the_working_directory(method: str, tmp_path: Path) -> None:
    """`python -m ocaffe.as_caffe` finds it there, in a checkout; then sys.path begins with the folder of the script."""
    (tmp_path / "script.py").write_text(script("Pool", method))
    assert output(["-m", "ocaffe.as_caffe", str(tmp_path / "script.py")], ROOT, "") == "[1, 2, 3, 4]\n"


@pytest.mark.parametrize("method", METHODS)
def test_a_device_in_a_child(method: str, tmp_path: Path) -> None:
    """A child that is not forked has a device of its own, also while its parent has one."""
    text = f"""
import caffe, numpy as np, multiprocessing as mp

def work(number):
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.blobs["x"].data[...] = number
    return float(net.forward()["y"][0])

if __name__ == "__main__":
    before = work(0) if "{method}" != "fork" else 1.0
    with mp.get_context("{method}").Pool(1) as pool: print(before, pool.map(work, range(2)))
"""
    (tmp_path / "script.py").write_text(text)
    (tmp_path / "net.prototxt").write_text("""layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }
layer { name: "p" type: "Power" bottom: "x" top: "y" power_param { shift: 1 } }
""")
    assert output(["-m", "ocaffe.as_caffe", "script.py"], tmp_path) == "1.0 [1.0, 2.0]\n"


def test_the_usage_has_all_forms(tmp_path: Path) -> None:
    for words, status in (["--help"], 0), ([], 1), (["-m"], 1), (["-c"], 1):
        done = subprocess.run([sys.executable, "-m", "ocaffe.as_caffe", *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == status and done.stderr.count("python -m ocaffe.as_caffe") == 3
