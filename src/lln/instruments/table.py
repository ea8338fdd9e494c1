"""A table that grows by rows: to CSV as it grows, to a DataFrame or a parquet file when asked."""

import csv
from pathlib import Path
from typing import Any

KEYS = ("step", "layer", "module", "kind", "length", "head")


class Table:
    """Rows are dictionaries. With `path`, each row is also appended to that CSV file as soon as it is known."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._path = None if path is None else Path(path)
        self._written: list[str] | None = None

    def add(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows
        if self._path is not None and rows:
            self._append(rows)

    def columns(self) -> list[str]:
        """The keys first, then the measures in the order in which they first came."""
        measures = dict.fromkeys(name for row in self.rows for name in row if name not in KEYS)
        return [*KEYS, *measures]

    def column(self, name: str, **where: Any) -> list[Any]:
        """One column, of the rows that have these values in other columns: table.column('gap', layer=2, head=0)."""
        return [row.get(name) for row in self.rows if all(row.get(key) == value for key, value in where.items())]

    def to_csv(self, path: str | Path) -> Path:
        path = Path(path)
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns())
            writer.writeheader()
            writer.writerows(self.rows)
        return path

    def to_pandas(self) -> Any:
        try:
            import pandas
        except ImportError as missing:
            raise ImportError("a DataFrame needs pandas: pip install 'lln-attention[instruments]'") from missing
        return pandas.DataFrame(self.rows, columns=self.columns())

    def to_parquet(self, path: str | Path) -> Path:
        frame = self.to_pandas()
        try:
            frame.to_parquet(path)
        except ImportError as missing:
            raise ImportError("a parquet file needs pyarrow: pip install 'lln-attention[instruments]'") from missing
        return Path(path)

    def _append(self, rows: list[dict[str, Any]]) -> None:
        assert self._path is not None
        columns = self.columns()
        if self._written == columns:
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, columns).writerows(rows)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.to_csv(self._path)  # a new column: the header changes, so the file is written again
        self._written = columns
