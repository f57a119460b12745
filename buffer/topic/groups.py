"""Groups of a topic: the same questions as of one buffer's, over all partitions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.buffer.base.errors import InvalidInput, NotFound
from forebay.buffer.groups import Groups, GroupState, no_such_group
from forebay.buffer.manifest.topic import MAX_PARTITIONS
from forebay.buffer.topic.topic import RECORD_KEY, Topic, check_place, in_parallel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import Any

    from forebay.buffer.base.clock import Clock, Random
    from forebay.buffer.base.process import Process
    from forebay.buffer.manifest.topic import TopicRecord
    from forebay.buffer.store import StoreUrl


@dataclass(frozen=True, slots=True)
class TopicGroupState:
    """What there is to know of a group of a topic."""

    name: str
    start: str
    """`earliest`, `latest` or a time, as it was first opened."""
    partitions: tuple[GroupState | None, ...]
    """The group in each partition; None where it is not created yet."""

    @property
    def alive(self) -> bool:
        """Whether a consumer has it in some partition."""
        return any(state is not None and state.alive for state in self.partitions)

    @property
    def owner(self) -> Process | None:
        """The process that has it, in the first partition where one is known; None if there is none."""
        return next((state.owner for state in self.partitions if state is not None and state.owner is not None), None)

    @property
    def waiting(self) -> int:
        """Batches not acknowledged, in all partitions together."""
        return sum(state.waiting for state in self.partitions if state is not None)


class TopicGroups:
    """The groups of a topic, for looking and for tidying."""

    def __init__(
        self,
        url: StoreUrl,
        *,
        storage_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._topic = Topic(url, storage_options=storage_options, clock=clock, random=random)

    def list(self) -> list[TopicGroupState]:
        """Return every group, by name."""
        record = self._topic.refresh()
        return [self._describe(record, name) for name in sorted(record.groups)]

    def describe(self, name: str) -> TopicGroupState:
        """Return one group.

        Raises:
            NotFound: there is none of that name.
        """
        return self._describe(self._topic.refresh(), name)

    def reset(self, name: str, to: str | datetime, *, force: bool = False) -> TopicGroupState:
        """Let a group read again from another place in every partition; its consumers, if any, are fenced.

        One partition after the other: after a failure, repeat it.

        Raises:
            InvalidInput: a consumer has it, and `force` is not set.
            Trimmed: that place is gone.
        """
        place = check_place(to)
        self._check_free(name, force=force)
        in_parallel(lambda number: self._groups(number).reset(name, place, force=force), range(self._topic.partitions))
        return self.describe(name)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Forget a group, so that it holds nothing back any more; its consumers, if any, are fenced.

        First in the record, so that no partition added later gets it, then in every partition. After a failure, or if
        partitions were being added meanwhile, repeat it: deleting what is not there does nothing.

        Raises:
            InvalidInput: a consumer has it, and `force` is not set.
        """
        if name in self._topic.refresh().groups:
            self._check_free(name, force=force)

        def remove(record: TopicRecord | None) -> TopicRecord | None:
            return None if record is None or name not in record.groups else record.without_group(name)

        self._topic.register.update(remove, lambda record: name not in record.groups)
        partitions = self._topic.refresh().partitions
        for number in range(MAX_PARTITIONS):
            # One above the count may have been made by somebody who is about to raise it, or who died before.
            if number >= partitions and not self._exists(number):
                return
            with suppress(NotFound):
                self._groups(number).delete(name, force=force)

    def _describe(self, record: TopicRecord, name: str) -> TopicGroupState:
        if name not in record.groups:
            raise no_such_group(self._topic.url, name, record.groups)

        def describe(number: int) -> GroupState | None:
            try:
                return self._groups(number).describe(name)
            except NotFound:
                return None

        return TopicGroupState(name, record.groups[name], tuple(in_parallel(describe, range(record.partitions))))

    def _exists(self, number: int) -> bool:
        try:
            self._topic.partition(number).get(RECORD_KEY)
        except NotFound:
            return False
        return True

    def _groups(self, number: int) -> Groups:
        return Groups(self._topic.partition(number), clock=self._topic.clock, random=self._topic.random)

    def _check_free(self, name: str, *, force: bool) -> None:
        if self.describe(name).alive and not force:
            raise InvalidInput(
                f"{self._topic.url}: a consumer owns group {name}: close that consumer first. If its process is dead, "
                "use --force (in Python: force=True)"
            )
