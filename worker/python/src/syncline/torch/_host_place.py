"""Which of a host's ranks this process is, and whether they send their gradients as one (docs/pytorch.md)."""
from __future__ import annotations

import os
from typing import NamedTuple, Optional

from syncline import _log
from syncline.errors import InvalidArgument

VARIABLE = "SYNCLINE_LOCAL_AGGREGATION"
# Who says which of a host's ranks this is, and how many there are: torchrun and `syncline run`; Open MPI.
_LOCAL = (("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"))


class HostPlace(NamedTuple):
    """A rank of a host. Its first one, the leader, talks to the servers for all of them."""

    local_rank: int
    local_ranks: int
    host: int
    hosts: int

    @property
    def is_leader(self) -> bool:
        """Whether this process holds the host's session."""
        return self.local_rank == 0

    def rank_of(self, local_rank: int) -> int:
        """Among all ranks of the job."""
        return self.host * self.local_ranks + local_rank


def is_wanted(asked: Optional[bool]) -> bool:
    """What the program says, otherwise the environment, otherwise not."""
    if asked is not None:
        if not isinstance(asked, bool):
            raise InvalidArgument(f"local_aggregation is {asked!r}, but must be True or False (None: as {VARIABLE} says)")
        return asked
    said = os.environ.get(VARIABLE, "")
    if said not in ("", "0", "1"):
        raise InvalidArgument(f"{VARIABLE} is {said!r}, but must be 1 or 0")
    return said == "1"


def warn_unheeded(who: str) -> None:
    """Of what pushes for each rank by itself although the environment asks for more."""
    if is_wanted(None):
        _log.logger.warning("%s=1 has no effect on %s: it holds for syncline.torch.Optimizer", VARIABLE, who)


def place_of(rank: int, ranks: int) -> HostPlace:
    """Of rank `rank` of `ranks`, by the launcher's variables. InvalidArgument where they do not say it, or hosts differ in size."""
    for names in _LOCAL:
        local_rank, local_ranks = (os.environ.get(name, "") for name in names)
        if local_rank.isdecimal() and local_ranks.isdecimal():
            return _checked(rank, ranks, int(local_rank), int(local_ranks))
    raise InvalidArgument(
        f"local aggregation among {ranks} ranks, but LOCAL_RANK and LOCAL_WORLD_SIZE do not say which of them are on this host: start "
        "the program by `syncline run`, torchrun or mpirun, which set them, or set them yourself")


def _checked(rank: int, ranks: int, local_rank: int, local_ranks: int) -> HostPlace:
    if local_ranks < 1 or local_rank >= local_ranks or ranks % local_ranks or rank % local_ranks != local_rank:
        raise InvalidArgument(
            f"local aggregation wants equally many ranks on each host, numbered host by host, but rank {rank} of {ranks} is number "
            f"{local_rank} of {local_ranks} on its host")
    return HostPlace(local_rank, local_ranks, rank // local_ranks, ranks // local_ranks)
