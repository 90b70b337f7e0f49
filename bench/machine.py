"""The machine on which a bench runs, and how much of it others took meanwhile."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

from bench.relay import cpu_seconds


class Watch:
    """Says at the end how quiet the machine was."""

    def __init__(self) -> None:
        self._load, self._began = psutil.getloadavg()[0], time.monotonic()
        self._times, self._own = psutil.cpu_times(), cpu_seconds([os.getpid()])

    def conditions(self) -> dict[str, Any]:
        """The machine; the shares of its CPU that we, others and the hypervisor have taken since the start."""
        cores, now = os.cpu_count() or 1, psutil.cpu_times()
        whole = (time.monotonic() - self._began) * cores
        spent = {name: getattr(now, name, 0.0) - getattr(self._times, name, 0.0) for name in now._fields}
        idle = spent["idle"] + spent.get("iowait", 0.0)
        steal, ours = spent.get("steal", 0.0), cpu_seconds([os.getpid()]) - self._own
        return {
            "cores": cores,
            "cpu": cpu_model(),
            "python": platform.python_version(),
            "seconds": round(whole / cores),
            "load_before": round(self._load, 2),
            "load_after": round(psutil.getloadavg()[0], 2),
            "ours": percent(ours, whole),
            "others": percent(max(0.0, whole - idle - steal - ours), whole),
            "steal": percent(steal, whole),
        }


def percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def cpu_model() -> str:
    """The processor's name, where the system tells it."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def sentence(machine: dict[str, Any]) -> str:
    """How quiet it was, for people."""
    return (
        f"{machine['cores']} cores ({machine['cpu'] or platform.machine()}), Python {machine['python']}. "
        f"In the {machine['seconds']} s of the run the bench took {machine['ours']} % of the CPU, other processes "
        f"{machine['others']} %, the hypervisor {machine['steal']} %."
    )
