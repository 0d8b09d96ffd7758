"""Jars of the systems that ours is compared with: fixed versions from Maven Central, over plain HTTPS, held
to their checksums.
"""

from __future__ import annotations

import hashlib
import pathlib
import shutil
import sys
import urllib.error
import urllib.request

CENTRAL = "https://repo1.maven.org/maven2/"
LISTS = pathlib.Path(__file__).resolve().parent


def fetched(cache: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the folder with the jars that `name`.jars lists (SHA-256 and path, one a line), fetched on
    first use.

    Raises:
        SystemExit: one cannot be fetched, or is not what it should be.
    """
    target = cache / "jars" / name
    if target.is_dir():
        return target
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    wanted = [line.split() for line in (LISTS / f"{name}.jars").read_text(encoding="utf-8").splitlines()]
    sys.stderr.write(f"fetching {len(wanted)} jars of {name} from {CENTRAL}\n")
    for checksum, path in wanted:
        try:
            with urllib.request.urlopen(CENTRAL + path, timeout=120) as response:
                content = response.read()
        except urllib.error.URLError as error:
            raise SystemExit(
                f"cannot fetch {CENTRAL}{path}: {error.reason}; check the network and try again"
            ) from None
        if hashlib.sha256(content).hexdigest() != checksum:
            raise SystemExit(
                f"{CENTRAL}{path} has another checksum than benchmarks/{name}.jars says: do not use it"
            )
        (partial / path.rpartition("/")[2]).write_bytes(content)
    partial.rename(target)
    return target
