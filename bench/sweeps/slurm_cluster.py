"""Run a sweep as jobs of a Slurm cluster, with submitit."""

from __future__ import annotations

import contextlib
import getpass
import io
import math
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.sweeps.executors import POLL_SECONDS, TAIL, Executor, Main, Task, TaskResult, environment, run_on_cluster

UNFINISHED = {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "RESIZING", "STOPPED"}
"""States in squeue in which a job has no result yet."""
RESULT_DELAY = 30.0
"""Seconds within which the result of an ended job must appear in the shared folder."""


class Slurm(Executor[Any]):
    """Jobs of a Slurm cluster whose nodes share the directories.

    Args:
        main: the command.
        folder: folder for the jobs' scripts, results and output; all nodes see it.
        cpus, gpus: requested for each job; with more than one GPU, teachers and DP-SGD are trained on all of them.
        jobs: number of jobs submitted at once; 0 = all.
        options: options of sbatch, without the leading dashes, such as {"partition": "gpu", "time": "120"}.
    """

    def __init__(
        self,
        main: Main,
        folder: Path,
        cpus: float = 1,
        gpus: float = 0,
        jobs: int = 0,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.main, self.folder, self.jobs = main, folder.resolve(), jobs
        self.cpus, self.gpus, self.options = max(1, math.ceil(cpus)), math.ceil(gpus), dict(options or {})
        self._ended: dict[str, float] = {}
        self._executor: Any = None

    @contextmanager
    def session(self) -> Iterator[None]:
        """Open submitit's executor. Raises BenchError if submitit or Slurm's commands are missing."""
        try:
            import submitit
        except ImportError:
            raise BenchError("--backend slurm needs submitit: pip install 'dp-distill-bench[slurm]'") from None
        missing = [name for name in ("sbatch", "srun", "squeue", "scancel") if shutil.which(name) is None]
        if missing:
            raise BenchError(f"--backend slurm: no command {missing[0]} here; run it on a login node of the cluster")
        exports = [f"export {name}={shlex.quote(value)}" for name, value in environment(self.cpus).items()]
        gpus = {"gpus_per_node": self.gpus} if self.gpus else {}
        self._executor = submitit.SlurmExecutor(self.folder)
        self._executor.update_parameters(
            job_name="bench",
            cpus_per_task=self.cpus,
            setup=exports,
            # Without it a step does not inherit cpus-per-task from its job in newer releases of Slurm
            srun_args=[f"--cpus-per-task={self.cpus}"],
            additional_parameters=self.options,
            **gpus,
        )
        yield

    def has_room(self, running: int, until: float | None) -> bool:
        """Whether one more job may be submitted, as `Executor`.

        With a time limit at most one job waits: its time could run out in the queue.
        """
        if self.jobs and running >= self.jobs:
            return False
        return until is None or not running or "PENDING" not in (self._states() or {}).values()

    def start(self, task: Task) -> Any:
        """Submit a job, as `Executor`. Raises BenchError if Slurm refuses the options."""
        import submitit

        try:
            with contextlib.redirect_stderr(io.StringIO()):  # submitit also prints its error there
                return self._executor.submit(_run_job, self.main, task, Path.cwd(), self.gpus, self.cpus)
        except submitit.core.utils.FailedJobError as error:
            line = str(error).strip().splitlines()[-1]
            raise BenchError(f"--backend slurm: sbatch refused the job ({line}); see --slurm") from None

    def wait(self, running: dict[Any, Task], seconds: float) -> dict[Any, TaskResult]:
        """Wait for results, as `Executor`. A job without a result that Slurm no longer runs has failed."""
        until = time.monotonic() + min(POLL_SECONDS, seconds)
        while True:
            ended = {job: self._result(job, task) for job, task in running.items() if job.paths.result_pickle.exists()}
            if ended or time.monotonic() >= until:
                break
            time.sleep(0.2)
        if not ended and (states := self._states()) is not None:
            for job, task in running.items():
                state = states.get(str(job.job_id), "gone")
                if state in UNFINISHED:
                    continue
                # Shared folders show the file of a result with a delay
                waited = time.monotonic() - self._ended.setdefault(str(job.job_id), time.monotonic())
                if state not in ("COMPLETED", "gone") or waited > RESULT_DELAY:
                    end = (job.stderr() or "").strip()[-TAIL:]
                    ended[job] = TaskResult(task.index, 1, f"{end}\nthe Slurm job {job.job_id}: {state}", 0.0)
        return ended

    def stop(self, running: dict[Any, Task]) -> None:
        """Cancel all jobs, as `Executor`: scancel gives a job the cluster's KillWait to handle SIGTERM."""
        if running:
            subprocess.run(["scancel", *(str(job.job_id) for job in running)], check=False)

    def _states(self) -> dict[str, str] | None:
        """Return states of this user's jobs by number, including recently ended ones; None if Slurm does not
        respond."""
        command = ["squeue", "--noheader", "--states=all", "--format=%i %T", f"--user={getpass.getuser()}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=False)
        if shown.returncode != 0:
            return None
        return dict(line.split(maxsplit=1) for line in shown.stdout.splitlines() if line.strip())

    @staticmethod
    def _result(job: Any, task: Task) -> TaskResult:
        error = job.exception()
        if error is not None:
            line = str(error).strip().splitlines()[-1]
            return TaskResult(task.index, 1, f"the Slurm job {job.job_id}: {line}", 0.0)
        result: TaskResult = job.result()
        return result


def _run_job(main: Main, task: Task, folder: Path, gpus: float, threads: int) -> TaskResult:
    """Run the command inside a job; scancel interrupts it, so that it can clean up."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run_on_cluster(main, task, folder, gpus, threads)
