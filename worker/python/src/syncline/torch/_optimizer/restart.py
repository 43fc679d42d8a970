"""The end of a job that is to start over: its workers meet when all of them have left it."""
from __future__ import annotations

from collections.abc import Mapping

import torch

from syncline._library import Options
from syncline.errors import FailedPrecondition
from syncline.session import Option, Session

# The options of a session that say which servers it talks to, and as which worker.
_WHERE = ("coordinator", "run_id", "rank", "world_size", "failure_timeout", "start_timeout")


class RestartBarrier:
    """Lets all workers of a job meet in a second job. A worker that joined the first one again at once would be in the old job.

    Raises FailedPrecondition if a worker's certificate does not allow another job.
    """

    def __init__(self, settings: Mapping[str, Option], world_size: int) -> None:
        self._world_size = world_size
        self._where = {key: value for key, value in settings.items() if key in _WHERE}
        options = Options()
        try:
            self._job = f"{settings.get('job') or options['job']}-anew"
            certificate = settings.get("tls_cert") or options["tls_cert"]
        finally:
            options.free()
        if world_size > 1 and certificate:
            raise FailedPrecondition(
                f"{certificate} is valid for one job only, but to begin that job anew its workers must meet in "
                "another one; make the Optimizer after the model is loaded, with state_dict=")

    def wait(self) -> None:
        """Blocks until all workers have left the job. The first that joins it then starts it from scratch."""
        if self._world_size == 1:
            return
        with Session(**self._where, job=self._job, optimizer="sgd", mode="bsp", durability="none", resume="never") as session:
            session.declare("left", torch.zeros(1))
            session.start()
