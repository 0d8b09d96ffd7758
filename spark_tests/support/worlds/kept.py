"""The newest snapshot of a scene, which a fresh core is restored from."""

from __future__ import annotations

from mq_broker.core import snapshot
from mq_broker.core.broker import Broker
from spark_tests.support.worlds.dumps import check_same, dump_broker
from spark_tests.support.worlds.lists import CLUSTER, ListSink, counted_ids
from spark_tests.support.worlds.scenes import Scene


class Kept:
    """The newest snapshot of a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.parts: dict[str, bytes] = {}

    def take(self) -> set[str]:
        """Takes another one and checks it; returns the keys that were written."""
        state = self.scene.broker.state
        snapshot.tidy(state)
        changed, unchanged = snapshot.take(state, self.parts)
        self.parts = {**{key: self.parts[key] for key in unchanged}, **dict(changed)}
        assert len(self.parts) == len(changed) + len(unchanged), "no part is both written and kept"
        check_same(dump_broker(self.restored()), dump_broker(self.scene.broker))
        return {key for key, _ in changed}

    def restored(self) -> Broker:
        broker = Broker(CLUSTER, self.scene.settings, ListSink(), counted_ids())
        snapshot.restore(broker.state, iter(self.parts.items()))
        return broker
