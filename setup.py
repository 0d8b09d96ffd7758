"""Packaging of pyspark-mq: three import packages, each in a source root of its own."""

from __future__ import annotations

import pathlib
import re

from setuptools import setup

HERE = pathlib.Path(__file__).resolve().parent
ROOTS = {"mq_wire": "proto", "pyspark_mq": "connector", "mq_broker": "broker_core"}


def packages() -> list[str]:
    """Returns the three packages and all packages inside them: every folder with Python files."""
    found = set()
    for name, root in ROOTS.items():
        for path in (HERE / root / name).rglob("*.py"):
            found.add(".".join(path.parent.relative_to(HERE / root).parts))
    return sorted(found)


def version() -> str:
    """Returns the newest version in the changelog, the only place where the version is written."""
    match = re.search(
        r"^## (\d+\.\d+\.\d+)", (HERE / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert match is not None, "CHANGELOG.md has no version"
    return match[1]


setup(
    name="pyspark-mq",
    version=version(),
    description="A durable, columnar message queue for Spark: "
    "read and write streams exactly once, with priorities and replay",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=packages(),
    package_dir={name: f"{root}/{name}" for name, root in ROOTS.items()},
    package_data={"": ["py.typed", "*.pyi", "*.proto"]},
    # The floors are no higher than those of pyspark[connect], so that both fit into one environment.
    install_requires=[
        "grpcio>=1.76.0",
        "protobuf>=6.31.1",
        "pyarrow>=18.0.0",
        "numpy>=1.23.2",
        "isal>=1.7.0",
    ],
    extras_require={
        "broker": ["pyroaring>=1.0.0", "grpcio-health-checking>=1.76.0", "grpcio-reflection>=1.76.0"],
        "spark": ["pyspark>=4.2"],
    },
    entry_points={"console_scripts": ["mq = mq_broker.console.main:main"]},
    zip_safe=False,
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
