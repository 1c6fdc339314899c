"""Sweeps on a Slurm cluster: a real one of a single node, which a fixture starts from Debian's packages.

apt-get install --no-install-recommends slurm-wlm munge
pytest tests/sweeps/test_slurm.py -m slow
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BENCH
from test_sweep import HOURS, accept_interrupts, outcomes

from bench.errors import BenchError
from bench.sweeps.executors import Task
from bench.sweeps.slurm_cluster import Slurm
from tests.sweeps.importable import environment, free_ports, importable, recipe, sweep_in_python

DAEMONS = ("munged", "slurmctld", "slurmd")
CONFIG = """
ClusterName=bench
SlurmctldHost={host}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={port}
SlurmdPort={slurmd_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=10
SlurmdParameters=config_overrides
NodeName={host} CPUs=2 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster of this machine only; yields its folder."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {missing[0]}: apt-get install --no-install-recommends slurm-wlm munge")
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs as root only")
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'dp-distill-bench[slurm]'")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    port, slurmd_port = free_ports(2)
    host = socket.gethostname().split(".")[0]
    config = folder / "slurm.conf"
    values = {"host": host, "user": "root", "folder": folder, "port": port, "slurmd_port": slurmd_port}
    config.write_text(CONFIG.format(**values), encoding="utf-8")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    monkeypatch.setenv("SLURM_CONF", str(config))
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = ["munged", "--foreground", "--force", *(f"--{name}={folder}/munge.{end}" for name, end in files.items())]
    started = []
    try:
        for command in (munge, ["slurmctld", "-D", "-f", str(config)], ["slurmd", "-D", "-f", str(config), "-N", host]):
            log = (folder / f"{command[0]}.said").open("w")
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
            time.sleep(1)
        until = time.monotonic() + 60
        while state(folder) not in ("idle", "mix") and time.monotonic() < until:
            assert all(process.poll() is None for process in started), daemon_logs(folder)
            time.sleep(0.5)
        assert state(folder) in ("idle", "mix"), daemon_logs(folder)
        yield folder
    finally:
        subprocess.run(["scancel", "--user=root"], check=False, capture_output=True)
        for process in reversed(started):
            process.terminate()
            process.wait(60)


def state(folder: Path) -> str:
    found = subprocess.run(["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True, check=False)
    return found.stdout.strip().rstrip("*~#!%$@^-")


def daemon_logs(folder: Path) -> str:
    logs = [*folder.glob("*.said"), *folder.glob("*.log")]
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


SWEEP = ["--tier", "smoke", "--backend", "slurm"]


@pytest.mark.slow
def test_slurm_cells_are_jobs_that_share_a_teacher(slurm: Path, tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        'method = ["no-defence", "label-smoothing"]\nepsilon = "inf"',
        'method = "rr"\n"method.rate" = 1e38\nepsilon = 1',
    )
    command = [*BENCH, "sweep", str(path), *SWEEP, "--slurm", "partition=debug", "--slurm", "time=30"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=500)
    found = outcomes(tmp_path / "runs")
    assert done.returncode == 1, done.stderr + daemon_logs(slurm)
    states = {name.split()[0]: outcome["state"] for name, outcome in found.items()}
    assert states == {"no-defence": "ok", "label-smoothing": "ok", "rr": "failed"}, done.stderr
    assert any("RuntimeError" in outcome["reason"] for outcome in found.values())
    assert len(list((tmp_path / "runs" / "steps" / "teacher").glob("[0-9a-f]*"))) == 1
    assert list((tmp_path / "runs" / "sweeps" / "slurm").glob("*_0_result.pkl"))
    again = subprocess.run(
        [*command, "--dry-run"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=100
    )
    assert "2 cached, 1 ready" in again.stdout


@pytest.mark.slow
def test_slurm_interrupted_sweep_cancels_its_jobs(slurm: Path, tmp_path: Path) -> None:
    path = recipe(tmp_path, HOURS, 'method = "no-defence"')
    started = subprocess.Popen(
        [*BENCH, "sweep", str(path), *SWEEP], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=accept_interrupts,
    )  # fmt: skip
    until = time.monotonic() + 300
    while not list((tmp_path / "runs").glob("steps/release/.making-*")) or "ok" not in {
        outcome["state"] for outcome in outcomes(tmp_path / "runs").values()
    }:
        assert started.poll() is None and time.monotonic() < until, daemon_logs(slurm)
        time.sleep(0.5)
    os.kill(started.pid, signal.SIGINT)
    _, shown = started.communicate(timeout=60)
    assert started.returncode == 130 and shown
    until = time.monotonic() + 30
    while jobs() and time.monotonic() < until:
        time.sleep(0.5)
    assert not jobs() and not list((tmp_path / "runs").glob("steps/release/.making-*")), "work directories are removed"


@pytest.mark.slow
def test_slurm_python_sweep_returns_runs_and_errors(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    out = tmp_path / "runs"
    sweep_in_python(out, backend="slurm", workers=2, slurm={"partition": "debug", "time": "30"})
    assert len(list((out / "sweeps" / "slurm").glob("*_0_result.pkl"))) == 4, daemon_logs(slurm)


def jobs() -> str:
    return subprocess.run(["squeue", "--noheader"], capture_output=True, text=True, check=True).stdout


CELLS = """
import os, signal, sys

def main(arguments):
    print("end", arguments[0], file=sys.stderr)
    if arguments[0] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return int(arguments[0])
"""


@pytest.mark.slow
def test_slurm_killed_job_is_a_failed_task(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = importable("slurm_cells", CELLS, tmp_path, monkeypatch)
    tasks = [Task(0, ("0",)), Task(1, ("die",)), Task(2, ("3",), after=frozenset({0}))]
    found = {done.index: done for done in Slurm(cells.main, tmp_path / "jobs", jobs=2).run(tasks)}
    assert {index: done.status for index, done in found.items()} == {0: 0, 1: 1, 2: 3}, daemon_logs(slurm)
    assert "FAILED" in found[1].tail and "end 3" in found[2].tail


@pytest.mark.slow
def test_slurm_refused_options_are_bad_input(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = importable("slurm_cells", CELLS, tmp_path, monkeypatch)
    with pytest.raises(BenchError, match="partition"):
        list(Slurm(cells.main, tmp_path / "jobs", options={"partition": "no-such"}).run([Task(0, ("0",))]))


def test_slurm_missing_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed: pip install 'dp-distill-bench[slurm]'")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BenchError, match="sbatch"):
        list(Slurm(len, tmp_path).run([Task(0, ("0",))]))
