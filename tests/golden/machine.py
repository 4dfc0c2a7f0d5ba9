"""Which machine golden numbers were made on, where they depend on it to the last digit."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.golden.recorded import FOLDER, writing


def described(*packages):
    """Return what decides the last digit here: versions of packages, and the processor's kind."""
    import torch

    return {
        **{package: version(package) for package in packages},
        "system": platform.system(),
        "machine": platform.machine(),
        "vendor": _vendor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def check(name, *packages):
    """Skip the test unless the golden files were made on such a machine; write which it is."""
    file, here = FOLDER / name, described(*packages)
    if writing():
        file.write_text(json.dumps(here, indent=2) + "\n", "utf-8")
    there = json.loads(file.read_text("utf-8"))
    other = [key for key in there if there[key] != here.get(key)]
    if other:
        reasons = "; ".join(f"{key} is {here.get(key)}, not {there[key]}" for key in other)
        pytest.skip(f"these golden files hold for another machine: {reasons}")


def _vendor():
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    found = [line.split(":")[1].strip() for line in lines if line.startswith("vendor_id")]
    return found[0] if found else platform.processor()
