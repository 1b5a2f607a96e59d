"""Whether the matrix unit of a device gives right results. It is used only after `ocaffe selftest` has passed with it on this device and driver.

The kernels follow the makers' documents and were tested on emulated units only. So the first use of `--math` on such a device runs the families of the
selftest that multiply matrices, in another process. The verdict is cached by device, driver, kernels and mode. The user's own `ocaffe selftest --math MODE
--products` replaces it.
"""
from __future__ import annotations

import subprocess

from ocaffe.cl import verdicts
from ocaffe.cl.verdicts import Facts
from ocaffe.errors import Error
from ocaffe.ir.matrix_units import UNITS
from ocaffe.kernels.files import kernel_text
from ocaffe.support import log, parent
from ocaffe.support.cache import digest


def running() -> bool:
    """Whether this is a process of a selftest: the unit may be used untested, and products of any size use it."""
    return bool(parent.told("unit_trial"))


def store(facts: Facts, unit: str, math: str, passed: bool) -> None:
    """Remember the verdict of a selftest."""
    verdicts.remember(_key(facts, unit, math), passed)


def require(facts: Facts, number: str, unit: str, math: str) -> None:
    """Raise Error unless the unit has passed with `math`, on the device `number` of the list. Run the selftest if there is no verdict."""
    if running():
        return
    passed, again = verdicts.recall(_key(facts, unit, math)), f"ocaffe selftest --device {number} --math {math} --products"
    if passed is None:
        log.info("opencl:0", f"Testing the matrix unit of {facts[0]} with --math {math}. This is done once, and takes a minute or two: {again}")
        passed = _passes(number, math)
    if not passed:
        raise Error(f"--math {math}: '{facts[0]}' computes matrix products wrong with it, by the selftest", fix=f"leave out --math; `{again}` shows the errors")


def _key(facts: Facts, unit: str, math: str) -> str:
    texts = [kernel_text(name) for name in ("tile_gpu.h", "tile_mma.h", UNITS[unit].header, "gemm_mma.cl", "conv_mma.cl")]
    return digest(*facts, unit, math, *texts)[:32]


def _passes(number: str, math: str) -> bool:
    """Run the selftest, which stores its verdict. It has a limit of time for each family."""
    done = subprocess.run(_command(number, math), env=verdicts.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def _command(number: str, math: str) -> list[str]:
    return verdicts.command("ocaffe", "selftest", "--device", number, "--math", math, "--products")
