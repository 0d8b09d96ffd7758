"""A fork: what was open refuses in the child and goes on in the parent; what the child makes works."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import uuid

import pytest

from mq_broker import LocalBroker
from mq_wire.v1 import admin_pb2
from pyspark_mq import Connection, Consumer, Producer

#: Runs BODY in COUNT children and ends with how many of them failed. A child that hangs is killed, which
#: counts.
_FORK = """
import os, pickle, signal, sys, threading
from mq_wire.errors import ClientClosed
from pyspark_mq import Connection, Consumer, Producer
from pyspark_mq.client.run import Run
address, queue = sys.argv[1:]

def refused(what):
    try:
        what()
    except ClientClosed as error:
        assert f"belongs to process {os.getppid()}" in str(error), error
        assert "make it in the child" in str(error), error
    else:
        raise AssertionError("not refused")

def children(count, body, leave=os._exit):
    pids = []
    for number in range(count):
        pid = os.fork()
        if not pid:
            signal.alarm(30)
            try:
                body(number)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            leave(0)
        pids.append(pid)
    return sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in pids)
"""


def run(script: str, broker: LocalBroker, queue: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, "-c", _FORK + script, broker.address, queue]
    done = subprocess.run(command, timeout=120, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def queue() -> str:
    return f"forks.{uuid.uuid4().hex[:8]}"


def stored(broker: LocalBroker, queue: str) -> list[bytes]:
    values: list[bytes] = []
    with Consumer(broker.address, queue=queue) as consumer:
        for batch in consumer.batches(timeout=0.5):
            values += batch.column("value").to_pylist()
            consumer.acknowledge(batch)
    return sorted(values)


def test_an_inherited_producer_refuses_and_the_parents_messages_are_stored_once(
    module_broker: LocalBroker, queue: str
) -> None:
    script = """
producer = Producer(address, queue=queue)
receipts = [producer.send(b"before %d" % i) for i in range(10)]
producer.flush()
under_way = producer.send(b"under way")
def body(number):
    for i in range(10):
        refused(lambda: producer.send(b"child"))
    refused(producer.flush)
    if not under_way.done():
        refused(lambda: under_way.result(10))
    assert receipts[0].result().offset is not None
    producer.close()
failed = children(4, body)
under_way.result(10)
receipts += [producer.send(b"after %d" % i) for i in range(10)]
producer.close()
sys.exit(failed)
"""
    run(script, module_broker, queue)
    assert stored(module_broker, queue) == sorted(
        [b"under way", *(b"before %d" % i for i in range(10)), *(b"after %d" % i for i in range(10))]
    )


def test_a_fork_while_threads_wait_for_each_receipt(module_broker: LocalBroker, queue: str) -> None:
    script = """
from pyspark_mq.client import publishing
publishing._AGAIN_S = 60.0
connection = Connection(address)
producers = [Producer(queue=queue, connection=connection) for _ in range(2)]
forked, sent = threading.Event(), []
def loop(producer):
    for i in range(10_000):
        sent.append(b"%d %d" % (id(producer), i))
        assert not producer.send(sent[-1]).result(30).duplicate
        if forked.is_set() and i >= 20:
            break
loops = [threading.Thread(target=loop, args=(producer,)) for producer in producers]
for each in loops:
    each.start()
while len(sent) < 20:
    pass
def body(number):
    for producer in producers:
        refused(lambda: producer.send(b"child"))
    refused(lambda: connection.call("Hello", None))
    with Producer(address, queue=queue + ".children") as mine:
        for i in range(5):
            assert mine.send(b"%d %d" % (number, i)).result(30).offset is not None
failed = children(3, body)
forked.set()
for each in loops:
    each.join()
for producer in producers:
    producer.close()
connection.close()
with Consumer(address, queue=queue) as consumer:
    got = []
    while len(got) < len(sent):
        message = consumer.receive(timeout=10)
        got.append(message.value)
        consumer.acknowledge(message)
assert sorted(got) == sorted(sent), (len(got), len(sent))
sys.exit(failed)
"""
    run(script, module_broker, queue)
    assert stored(module_broker, queue + ".children") == sorted(
        b"%d %d" % (number, i) for number in range(3) for i in range(5)
    )


@pytest.mark.parametrize("busy", [False, True], ids=["idle parent", "busy parent"])
def test_producers_made_in_children_work(module_broker: LocalBroker, queue: str, busy: bool) -> None:
    script = f"""
mine = Producer(address, queue=queue + ".parent")
mine.send(b"x").result(10)
consumer = Consumer(address, queue=queue + ".parent")
consumer.receive(timeout=10)
stop = threading.Event()
def send():
    while not stop.wait(0.001):
        mine.send(b"y")
if {busy}:
    threading.Thread(target=send).start()
def body(number):
    with Producer(address, queue=queue) as producer:
        for i in range(10):
            producer.send(b"%d %d" % (number, i))
    # And a child of the child.
    def again(_):
        with Producer(address, queue=queue + ".again") as producer:
            producer.send(b"%d" % number).result(10)
    assert children(1, again) == 0
failed = children(4, body)
stop.set()
mine.close()
consumer.close()
sys.exit(failed)
"""
    run(script, module_broker, queue)
    assert stored(module_broker, queue) == sorted(
        b"%d %d" % (number, i) for number in range(4) for i in range(10)
    )
    assert stored(module_broker, f"{queue}.again") == [b"0", b"1", b"2", b"3"]


def test_inherited_consumers_connections_and_runs_refuse(module_broker: LocalBroker, queue: str) -> None:
    with Producer(module_broker.address, queue=queue) as producer:
        for i in range(10):
            producer.send(b"%d" % i)
    script = """
shared, own = Connection.shared(address), Connection(address)
own.hello(), shared.hello()
run = Run(shared)
number = run.number()
consumer = Consumer(address, queue=queue)
first = consumer.receive(timeout=10)
pickled = pickle.dumps(own)
def body(_):
    for what in (shared.hello, own.hello, run.number, lambda: consumer.receive(timeout=1), consumer.flush):
        refused(what)
    refused(lambda: consumer.acknowledge(first))
    refused(lambda: next(consumer.batches(timeout=1)))
    consumer.close()
    mine = Connection.shared(address)
    assert mine is not shared and len(mine.cluster_id) == 16
    assert pickle.loads(pickled) is mine and pickle.loads(pickle.dumps(shared)) is mine
    theirs = Run(mine)
    assert theirs.number() > number
    theirs.close()
failed = children(2, body)
assert run.number() == number and len(run.cluster_id) == 16
consumer.acknowledge(first)
for _ in range(9):
    consumer.acknowledge(consumer.receive(timeout=10))
consumer.close()
sys.exit(failed)
"""
    run(script, module_broker, queue)
    assert stored(module_broker, queue) == []


def test_a_child_that_ends_normally_neither_flushes_nor_hangs(module_broker: LocalBroker, queue: str) -> None:
    script = """
producer = Producer(address, queue=queue, linger_ms=60_000)
producer.send(b"0").result(10)
producer.send(b"1")
producer.send(b"lingers")
consumer = Consumer(address, queue=queue)
consumer.receive(timeout=10)
def leave(code):
    signal.alarm(20)
    raise SystemExit(code)   # through atexit, destructors and all
pid = os.fork()
if not pid:
    leave(0)
failed = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
consumer.close()
producer.close()
sys.exit(failed)
"""
    done = run(script, module_broker, queue, "-W", "error")
    assert done.stderr == ""
    assert stored(module_broker, queue) == [b"0", b"1", b"lingers"]


def test_a_lock_that_another_thread_held_does_not_hang_the_child(
    module_broker: LocalBroker, queue: str
) -> None:
    script = """
producer, consumer = Producer(address, queue=queue), Consumer(address, queue=queue)
producer.send(b"0").result(10)
held, done = threading.Event(), threading.Event()
def hold():
    with producer._gathering.lock, consumer._consuming.lock, Connection._shared_lock:
        held.set()
        done.wait(60)
threading.Thread(target=hold).start()
held.wait()
def body(_):
    refused(lambda: producer.send(b"1"))
    refused(lambda: consumer.receive(timeout=1))
    assert len(Connection.shared(address).cluster_id) == 16
failed = children(1, body)
done.set()
producer.close(), consumer.close()
sys.exit(failed)
"""
    run(script, module_broker, queue)


def test_processes_of_multiprocessing_flush_what_they_do_not_close(
    module_broker: LocalBroker, queue: str, tmp_path: pathlib.Path
) -> None:
    script = """
import multiprocessing
producer = Producer(address, queue=queue)
producer.send(b"parent").result(10)
def work(number):
    mine = Producer(address, queue=queue, linger_ms=60_000)
    for i in range(10):
        mine.send(b"%d %d" % (number, i))
processes = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(4)]
for process in processes:
    process.start()
for process in processes:
    process.join(60)
producer.close()
sys.exit(sum(process.exitcode != 0 for process in processes))
"""
    run(script, module_broker, queue)
    assert stored(module_broker, queue) == sorted(
        [b"parent", *(b"%d %d" % (number, i) for number in range(4) for i in range(10))]
    )


def test_this_process_is_none_the_worse(module_broker: LocalBroker) -> None:
    with Connection(module_broker.address) as connection:
        assert connection.call("ListDestinations", admin_pb2.ListDestinationsRequest(prefix="forks."))
