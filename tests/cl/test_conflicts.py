"""Other packages in the same process: they hide no device, or a message names the package and the order of imports."""
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ocaffe.cl.discovery import Runtime, discover

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the dynamic linker of Linux")
ROOT = Path(__file__).resolve().parents[2]
PROLOGUE = """
import ctypes, importlib, json, sys
from ocaffe.errors import Error

def other():
    ctypes.CDLL(sys.argv[1]) if ".so" in sys.argv[1] else importlib.import_module(sys.argv[1])

def doubled():
    from ocaffe.cl.device import Device, list_devices
    from ocaffe.cl.program import ProgramKey, Programs
    import numpy as np
    key, result = ProgramKey("kernel void twice(global float* x) { x[get_global_id(0)] *= 2; }\\n"), {}
    for info in list_devices():
        device = Device(info)
        cl, x = device.cl, np.ones(1, np.float32)
        buffer = cl.Buffer(device.context, cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR, hostbuf=x)
        cl.Kernel(Programs(device).build_all([key])[key], "twice")(device.queue, (1,), None, buffer)
        cl.enqueue_copy(device.queue, x, buffer)
        result[info.platform_name] = float(x[0])
    return result
"""
BEFORE, AFTER = "other()\nfound = doubled()\n", "doubled()\nother()\nfound = doubled()\n"
LOADER = "import ctypes, pathlib\nctypes.CDLL(str(pathlib.Path(__file__).parent / 'libs' / '{}'))\n"


def run(code: str, *arguments: str, path: str = "") -> tuple[dict[str, float], str]:
    """Run code in a new process. Return its `found`, and its stderr."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), path, *sys.path])}
    command = [sys.executable, "-c", PROLOGUE + code + "print(json.dumps(found))", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.split("\n")[-2]), done.stderr


@pytest.fixture(scope="module")
def platforms() -> set[str]:
    found = {name for runtime in discover().runtimes if runtime.devices for name, _ in runtime.platforms}
    if not found:
        pytest.skip("no OpenCL runtime, or the environment directs the loader")
    return found


def installed(name: str) -> str:
    """Return a module's name, or the path of a library. Skip the test without it. Nothing is imported here: that could hide a device from later tests."""
    if name.startswith("lib"):
        name = str(next(Path(sys.prefix, "lib").glob(name), ""))
        present = bool(name)
    else:
        present = importlib.util.find_spec(name.partition(".")[0]) is not None
    if not present:
        pytest.skip("not installed")
    return name


@pytest.mark.parametrize("order", [BEFORE, AFTER], ids=["before", "after"])
@pytest.mark.parametrize("name", ["torch", "onnxruntime", "cv2", "scipy.linalg", "libmkl_rt.so.*"])
def test_other_packages_hide_no_device(platforms: set[str], name: str, order: str) -> None:
    found, said = run(order, installed(name))
    assert found == dict.fromkeys(platforms, 2.0) and "not in this one" not in said


@pytest.mark.parametrize("order", [BEFORE, AFTER], ids=["before", "after"])
def test_openvino_hides_no_device_silently(platforms: set[str], order: str) -> None:
    found, said = run(order, installed("openvino"))
    assert set(found) == platforms or (order == BEFORE and "before `import openvino`" in said)


def intel() -> Runtime:
    """Return a runtime that has its TBB beside itself, as the wheel of Intel's has."""
    for runtime in discover().runtimes:
        if runtime.devices and "libintelocl" in runtime.library and Path(runtime.library).resolve().with_name("libtbb.so.12").exists():
            return runtime
    pytest.skip("Intel's runtime is not installed as a wheel")


@pytest.fixture
def rival(tmp_path: Path) -> str:
    """A folder with the package `rival`, which loads a libtbb.so.12 without the functions that Intel's runtime needs."""
    intel()
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "rival" / "libs" / "libtbb.so.12"
    library.parent.mkdir(parents=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libtbb.so.12", "-x", "c", "-", "-o", str(library)], input=b"int old;", check=True)
    (tmp_path / "rival" / "__init__.py").write_text(LOADER.format(library.name))
    return str(tmp_path)


def test_a_package_that_hides_a_device_is_named(platforms: set[str], rival: str) -> None:
    if platforms == {name for name, _ in intel().platforms}:
        pytest.skip("no other device: test_without_another_device_the_error_names_the_package has this case")
    found, said = run(BEFORE, "rival", path=rival)
    assert set(found) == platforms - {name for name, _ in intel().platforms}
    assert "works in a process of its own, but not in this one" in said and "undefined symbol" in said
    assert f"rival has loaded another copy of libtbb.so.12: {rival}/rival/libs/libtbb.so.12" in said
    assert "fix: run `import ocaffe; ocaffe.set_mode_cpu()` before `import rival`" in said


def test_the_order_of_the_message_works(platforms: set[str], rival: str) -> None:
    found, said = run("import ocaffe; ocaffe.set_mode_cpu()\n" + BEFORE, "rival", path=rival)
    assert set(found) == platforms and "not in this one" not in said


def test_without_another_device_the_error_names_the_package(rival: str) -> None:
    code = f"""
from ocaffe.cl import discovery
discovery._candidates = lambda: iter([discovery.Runtime({intel().library!r}, "a test")])
other()
import ocaffe
try:
    ocaffe.set_mode_cpu()
except Error as error:
    found = str(error)
"""
    said, _ = run(code, "rival", path=rival)
    assert str(said).startswith("no OpenCL device in this process; runtimes that were found but do not work:")
    assert "rival has loaded" in str(said) and str(said).endswith("fix: run `import ocaffe; ocaffe.set_mode_cpu()` before `import rival`")
