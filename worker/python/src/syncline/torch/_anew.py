"""The end of a job that is to begin anew: its workers meet when all of them have left it."""
from __future__ import annotations

from collections.abc import Mapping

import torch

from syncline._library import Options
from syncline.errors import FailedPrecondition
from syncline.session import Option, Session

# Of a session's options: whom it talks to, and as whom.
_WHERE = ("coordinator", "run_id", "rank", "world_size", "failure_timeout", "start_timeout")


class Meeting:
    """Of all workers of a job, in a job beside it: one that joined again at once would find itself in the old one.

    FailedPrecondition where a worker may not be in another job.
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
                f"{certificate} is the certificate of one job, and to begin that one anew its workers meet in another one; make the "
                "Optimizer when the model is loaded, with state_dict=")

    def hold(self) -> None:
        """Returns when all workers have left the job: whoever joins it then begins a new one."""
        if self._world_size == 1:
            return
        with Session(**self._where, job=self._job, optimizer="sgd", mode="bsp", durability="none", resume="never") as session:
            session.declare("left", torch.zeros(1))
            session.start()
