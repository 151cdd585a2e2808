"""Results of searches in an SQLite file, which processes may share."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from search_gym.retrieval import Hit
from search_gym.retrieval.processes import PerProcess

BUSY_SECONDS = 60.0
"""How long one process waits for another to finish writing."""
_VERSION = 1
_MARK = 0x53_47_52_43  # SQLite's application_id: "SGRC"
_BATCH = 500


class DiskCache:
    """Results of searches by their addresses.

    Every process opens the file for itself, and its threads take turns. What `write` was given is there, as a whole,
    once it has returned, even if the process is killed then; if the machine is, the last of it may be lost, and nothing
    else.

    Args:
        path: the file; it is made, and the folders above it.

    Raises:
        ValueError: if the file is no such cache, of another version, or damaged; or if it cannot be opened or written,
            or others hold it for too long.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened = PerProcess(self._open, lambda opened: opened[0].close())
        with self._turn():
            pass

    def read(self, addresses: Iterable[bytes]) -> dict[bytes, tuple[Hit, ...]]:
        """What is known of these addresses."""
        wanted = list(addresses)
        rows: list[tuple[bytes, bytes]] = []
        with self._turn() as database:
            for start in range(0, len(wanted), _BATCH):
                part = wanted[start : start + _BATCH]
                marks = ",".join("?" * len(part))
                rows += database.execute(f"SELECT address, hits FROM results WHERE address IN ({marks})", part)
            return {address: _read(hits) for address, hits in rows}

    def write(self, results: Mapping[bytes, tuple[Hit, ...]]) -> None:
        """Keep results, all of them or, where the process is stopped, none."""
        rows = [(address, _written(hits)) for address, hits in results.items()]
        with self._turn() as database:
            database.execute("BEGIN IMMEDIATE")
            try:
                database.executemany("INSERT OR REPLACE INTO results VALUES (?, ?)", rows)
                database.execute("COMMIT")
            except BaseException:
                database.rollback()
                raise

    def close(self) -> None:
        """Close the file in this process; the next call opens it again."""
        self._opened.close()

    @contextmanager
    def _turn(self) -> Iterator[sqlite3.Connection]:
        """The database, for one thread at a time; SQLite's errors become such as say what to do."""
        try:
            database, lock = self._opened.get()
            with lock:
                yield database
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR:
                raise ValueError(f"{self.path}: the search cache cannot be used: {error}{_advice(code)}") from error
            raise ValueError(
                f"{self.path}: the search cache is damaged, or is none ({error}): delete it, with {self.path.name}-wal "
                f"and {self.path.name}-shm beside it, or name another file"
            ) from error

    def _open(self) -> tuple[sqlite3.Connection, threading.Lock]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Transactions are begun by hand: autocommit (isolation_level=None) leaves none open by accident.
        database = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database, threading.Lock()

    def _prepare(self, database: sqlite3.Connection) -> None:
        database.execute("BEGIN")  # or its questions would see the file before and after another process wrote it
        empty = self._is_empty(database)
        database.execute("COMMIT")
        if empty:
            _use_log(database)
            database.execute("BEGIN IMMEDIATE")
            if self._is_empty(database):  # nobody was faster
                database.execute("CREATE TABLE results (address BLOB PRIMARY KEY, hits BLOB NOT NULL)")
                database.execute(f"PRAGMA application_id = {_MARK}")
                database.execute(f"PRAGMA user_version = {_VERSION}")
            database.execute("COMMIT")
        database.execute("PRAGMA synchronous = NORMAL")

    def _is_empty(self, database: sqlite3.Connection) -> bool:
        """Whether it has no scheme yet. ValueError: it has another."""
        questions = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        mark, version, tables = (database.execute(question).fetchone()[0] for question in questions)
        if mark == _MARK and version != _VERSION:
            raise ValueError(
                f"{self.path}: a search cache of version {version}, and this program reads {_VERSION}: delete it, or "
                "name another file"
            )
        if mark not in (0, _MARK) or (mark == 0 and (version or tables)):
            raise ValueError(f"{self.path}: a database of another program: name another file for the search cache")
        return mark == 0


def _use_log(database: sqlite3.Connection) -> None:
    """Let readers and a writer not wait for each other. SQLite does not wait its busy time out for this."""
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            database.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _advice(code: int) -> str:
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f": another process holds it for more than {BUSY_SECONDS:g} s"
    return ": see that the folder is there, on a disk of this machine that is not full, and may be written"


# As in a store of passages, half a surrogate pair comes back as it was.
def _written(hits: tuple[Hit, ...]) -> bytes:
    fields = [[hit.id, hit.title, hit.text, float(hit.score)] for hit in hits]
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _read(content: bytes) -> tuple[Hit, ...]:
    try:
        return tuple(Hit(*fields) for fields in json.loads(content.decode("utf-8", "surrogatepass")))
    except (ValueError, TypeError, AttributeError) as error:
        raise sqlite3.DatabaseError(f"it holds a result that cannot be read: {error}") from error
