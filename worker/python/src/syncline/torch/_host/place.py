"""Finds out which rank of its host this process is, and whether the ranks of a host send their gradients as one (docs/pytorch.md)."""
from __future__ import annotations

import os
from typing import NamedTuple, Optional

from syncline import _log
from syncline.errors import InvalidArgument

VARIABLE = "SYNCLINE_LOCAL_AGGREGATION"
# Variables with this process's rank within its host and the number of ranks there: of torchrun and `syncline run`, then of Open MPI.
_LOCAL = (("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"))
# Variables with the number of this host and the number of hosts, set by torchrun and `syncline run`.
_HOSTS = ("GROUP_RANK", "GROUP_WORLD_SIZE")


class HostPlace(NamedTuple):
    """The place of a rank on its host and in the job. The first rank of a host is its leader and talks to the servers for all."""

    local_rank: int
    local_ranks: int
    host: int
    hosts: int
    leader: int  # the leader's rank in the job
    ranks: int  # number of ranks of the job

    @property
    def is_leader(self) -> bool:
        """Whether this process holds the host's session."""
        return self.local_rank == 0

    def rank_of(self, local_rank: int) -> int:
        """Returns the rank in the job of rank `local_rank` of this host."""
        return self.leader + local_rank


def is_wanted(asked: Optional[bool]) -> bool:
    """Returns whether to aggregate: as the program asked or, if that is None, as the environment says. The default is no."""
    if asked is not None:
        if not isinstance(asked, bool):
            raise InvalidArgument(f"local_aggregation is {asked!r}, but must be True or False (None: as {VARIABLE} says)")
        return asked
    said = os.environ.get(VARIABLE, "")
    if said not in ("", "0", "1"):
        raise InvalidArgument(f"{VARIABLE} is {said!r}, but must be 1 or 0")
    return said == "1"


def warn_unheeded(who: str) -> None:
    """Logs a warning if the environment asks for local aggregation, which `who` does not support."""
    if is_wanted(None):
        _log.logger.warning("%s=1 has no effect on %s", VARIABLE, who)


def place_of(rank: int, ranks: int) -> HostPlace:
    """Returns the place of rank `rank` of `ranks`, from the launcher's variables.

    Raises InvalidArgument if they are not set or contradict each other.
    """
    for names in _LOCAL:
        local_rank, local_ranks = (os.environ.get(name, "") for name in names)
        if local_rank.isdecimal() and local_ranks.isdecimal():
            return _placed(rank, ranks, int(local_rank), int(local_ranks))
    raise InvalidArgument(
        f"local aggregation among {ranks} ranks, but LOCAL_RANK and LOCAL_WORLD_SIZE do not say which of them are on this host: start "
        "the program by `syncline run`, torchrun or mpirun, which set them, or set them yourself")


def _placed(rank: int, ranks: int, local_rank: int, local_ranks: int) -> HostPlace:
    leader = rank - local_rank
    if not 0 <= local_rank < local_ranks or leader < 0:
        raise InvalidArgument(f"rank {rank} of {ranks} cannot be number {local_rank} of {local_ranks} on its "
                              "host: RANK, LOCAL_RANK and LOCAL_WORLD_SIZE (or OMPI_COMM_WORLD_…) contradict "
                              "each other, or the ranks of a host are not consecutive")
    host, hosts = (os.environ.get(name, "") for name in _HOSTS)
    if host.isdecimal() and hosts.isdecimal():
        return _checked(HostPlace(local_rank, local_ranks, int(host), int(hosts), leader, ranks))
    if ranks % local_ranks or leader % local_ranks:
        raise InvalidArgument(
            f"local aggregation: rank {rank} of {ranks} is number {local_rank} of {local_ranks} on its host, so "
            "other hosts have a different number of ranks, but GROUP_RANK and GROUP_WORLD_SIZE do not say which "
            "host this is and how many there are: start the program by torchrun, which sets them, set them "
            "yourself, or start equally many ranks on each host")
    return HostPlace(local_rank, local_ranks, leader // local_ranks, ranks // local_ranks, leader, ranks)


def _checked(place: HostPlace) -> HostPlace:
    """Returns `place`, or raises InvalidArgument if its parts contradict each other.

    The number and the ranks of a host that came later may be beyond those that the job began with.
    """
    is_alone = place.hosts == 1 and place.host == 0
    is_after_others = place.host <= place.leader and (place.host == 0) == (place.leader == 0)
    if 1 <= place.hosts <= place.ranks and is_after_others and (not is_alone or place.ranks == place.local_ranks):
        return place
    raise InvalidArgument(
        f"GROUP_RANK and GROUP_WORLD_SIZE say that this is host {place.host} of {place.hosts}, which contradicts "
        f"its {place.local_ranks} ranks from rank {place.leader} on, of {place.ranks}: `syncline run` and "
        "torchrun set them; if you set LOCAL_RANK yourself, set both of them or neither")
