"""`make corpora`: reads the test feeds of public feed parsers and compares the result with that of their parser.

Their source packages are downloaded from the package index by name, version and digest into .local/corpora; they are
not part of this repository. Exit code 1 if any feed is read differently.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from tests.corpora.compare import feedparser_corpus, podcastparser_corpus

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".local" / "corpora"
REQUIREMENTS = Path(__file__).parent / "requirements.txt"


def download() -> Path:
    """Downloads and unpacks the source packages, and installs feedparser beside them for the comparison."""
    PLACE.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    pinned = ["--require-hashes", "--no-deps", "-r", str(REQUIREMENTS)]
    if len(list(PLACE.glob("*.tar.gz"))) < 2:
        subprocess.run([*pip, "download", "--no-binary", ":all:", "-d", str(PLACE), *pinned], check=True)
        for archive in PLACE.glob("*.tar.gz"):
            with tarfile.open(archive) as opened:
                opened.extractall(PLACE, filter="data")
    if not (PLACE / "lib" / "feedparser").exists():
        subprocess.run([*pip, "install", "--target", str(PLACE / "lib"), "feedparser==6.0.14"], check=True)
    return PLACE


def main() -> int:
    place = download()
    sys.path.insert(0, str(place / "lib"))
    feeds, podcasts = next(place.glob("feedparser-*/tests")), next(place.glob("podcastparser-*/tests/data"))
    tallies = [feedparser_corpus(feeds), podcastparser_corpus(podcasts)]
    for tally in tallies:
        print(tally)
    return 1 if any(tally.wrong for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
