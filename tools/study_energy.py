#!/usr/bin/env python3
"""study_energy.py POWERCAP PROGRAM [ARG...]: runs the program; the first rank of each node prints what energy its node used meanwhile.

POWERCAP is /sys/class/powercap or a folder like it. The line is "cifar_mpi energy: " and an object: host, joules (null if nothing could
be read), seconds, unread (why). It counts the processor packages with their memory (RAPL) and NVIDIA's GPUs, for the whole node.
"""
import ctypes
import glob
import json
import os
import signal
import socket
import subprocess
import sys
import time

EVERY_S = 10.0  # RAPL's counters wrap around, some within minutes
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID", "SLURM_LOCALID")


def number_in(path):
    with open(path, encoding="ascii") as file:
        return int(file.read())


class Rapl:
    """Sums the counters of the packages and of their memory; a package counts its cores itself."""

    def __init__(self, root, unread):
        self.joules, self.last = 0.0, {}
        for zone in sorted(glob.glob(f"{root}/*:*")):
            if "/intel-rapl-mmio:" in zone and os.path.exists(zone.replace("/intel-rapl-mmio:", "/intel-rapl:")):
                continue  # the same counter, read from memory instead of a register
            try:
                with open(f"{zone}/name", encoding="ascii") as file:
                    name = file.read().strip()
                if name.startswith("package") or name == "dram":
                    number_in(f"{zone}/max_energy_range_uj")
                    self.last[zone] = number_in(f"{zone}/energy_uj")
            except (OSError, ValueError) as error:
                unread.append(f"{zone}/energy_uj cannot be read ({getattr(error, 'strerror', None) or error}); often root alone may")
        if not self.last and not unread:
            unread.append(f"{root} has no counters of energy; virtual machines have none")

    def update(self):
        for zone, before in self.last.items():
            now = number_in(f"{zone}/energy_uj")
            self.joules += 1e-6 * (now - before if now >= before else now - before + number_in(f"{zone}/max_energy_range_uj"))
            self.last[zone] = now


class Nvml:
    """The counters of the GPUs, in mJ since the driver was loaded."""

    def __init__(self, unread):
        self.joules, self.devices = 0.0, []
        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return  # no GPUs here
        count = ctypes.c_uint()
        if self.library.nvmlInit_v2() or self.library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            unread.append("NVML does not start, so the energy of GPUs is missing")
            return
        for index in range(count.value):
            device = ctypes.c_void_p()
            if self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) or self.total(device) is None:
                unread.append(f"GPU {index} does not report its energy")
            else:
                self.devices.append((device, self.total(device)))

    def total(self, device):
        millijoules = ctypes.c_ulonglong()
        return None if self.library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(millijoules)) else millijoules.value

    def update(self):
        self.joules = sum(1e-3 * ((self.total(device) or first) - first) for device, first in self.devices)


def run_measured(root, command):
    unread = []
    rapl, nvml = Rapl(root, unread), Nvml(unread)
    begin = time.monotonic()
    child, early = None, []

    def pass_on(number, _):
        early.append(number) if child is None else child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, pass_on)
    with subprocess.Popen(command) as child:
        for number in early:
            child.send_signal(number)
        status = None
        while status is None:
            try:
                status = child.wait(timeout=EVERY_S)
            except subprocess.TimeoutExpired:
                pass
            rapl.update()
    nvml.update()
    found = rapl.last or nvml.devices
    print("cifar_mpi energy: " + json.dumps({"host": socket.gethostname(), "joules": rapl.joules + nvml.joules if found else None,
                                             "seconds": time.monotonic() - begin, "unread": unread}), flush=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    local = next((os.environ[name] for name in LOCAL_RANK if name in os.environ), "0")
    if len(sys.argv) < 3:
        sys.exit("study_energy: give the folder of the counters and a program")
    try:
        if local != "0":
            os.execvp(sys.argv[2], sys.argv[2:])
        sys.exit(run_measured(sys.argv[1], sys.argv[2:]))
    except OSError as error:
        sys.exit(f"study_energy: {sys.argv[2]} does not start: {error.strerror}")
