"""Make the report of a comparison again: python -m experiments.report RUN"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.report import Comparison, write


def main(argv: list[str] | None = None) -> int:
    """The command; 0 when the report is written, 2 where there is nothing to report on."""
    parser = argparse.ArgumentParser(prog="python -m experiments.report", description="Write RUN/report.html.")
    parser.add_argument("run", metavar="RUN", type=Path, help="the folder of a comparison that ablate.py finished")
    folder = parser.parse_args(argv).run
    try:
        print(write(Comparison.read(folder), folder))
    except (ValueError, FileNotFoundError) as error:
        print(f"report: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
