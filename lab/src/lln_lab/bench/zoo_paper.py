"""The paper's own measurements: Table 2 (RoBERTa-base on an A100) and Table 4 (Long Range Arena), as ratios to softmax."""

from collections.abc import Mapping

TABLE_2_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
TABLE_2_MEMORY: dict[str, tuple[float | None, ...]] = {  # gigabytes
    "softmax": (4.0, 5.5, 12.6, 32.1, None, None),
    "nystromformer": (4.0, 4.5, 5.5, 7.3, 11.6, 19.1),
    "lln": (4.1, 4.4, 5.7, 7.5, 12.0, 20.1),
    "lln_diag": (4.1, 4.6, 6.1, 8.1, 13.4, 23.0),
}
TABLE_2_TIME: dict[str, tuple[float | None, ...]] = {  # seconds per iteration
    "softmax": (0.95, 1.05, 2.4, 6.8, None, None),
    "nystromformer": (1.8, 1.9, 2.6, 4.7, 8.8, 16.7),
    "lln": (1.0, 1.05, 1.6, 3.2, 6.1, 11.8),
    "lln_diag": (1.2, 1.3, 1.9, 3.6, 6.9, 13.3),
}
TABLE_4_LENGTHS = {1024: ("PF", "IC"), 2048: ("LO",), 4096: ("TC", "RE")}  # the tasks of each length
TABLE_4_TASKS = ("TC", "LO", "RE", "PF", "IC")
TABLE_4_TIME = {  # seconds
    "softmax": (21468, 5905, 21866, 6754, 13228),
    "reformer": (4610, 2439, 4714, 4694, 8737),
    "performer": (3456, 1966, 3761, 3553, 13169),
    "skyformer": (4523, 2970, 5602, 5240, 9347),
    "lln_diag": (3043, 1774, 3135, 3042, 4053),
}
TABLE_4_MEMORY = {  # megabytes
    "softmax": (17108, 4458, 8934, 4817, 9632),
    "reformer": (3261, 1631, 3008, 3258, 6514),
    "performer": (2176, 1122, 2178, 2180, 4353),
    "skyformer": (3068, 1697, 2974, 4041, 8079),
    "lln_diag": (1641, 821, 1586, 1639, 3276),
}


def paper_ratios(member: str, shape: str, length: int) -> dict[str, float] | None:
    """{"time": ..., "memory": ...} to softmax, or None where the paper has no number (the mean over tasks in Table 4)."""
    if shape == "roberta" and member in TABLE_2_TIME and length in TABLE_2_LENGTHS:
        at = TABLE_2_LENGTHS.index(length)
        numbers = [table[name][at] for table in (TABLE_2_TIME, TABLE_2_MEMORY) for name in (member, "softmax")]
        time, softmax_time, memory, softmax_memory = numbers
        if time is None or memory is None or softmax_time is None or softmax_memory is None:
            return None
        return {"time": time / softmax_time, "memory": memory / softmax_memory}
    if shape == "small" and member in TABLE_4_TIME and length in TABLE_4_LENGTHS:
        columns = [TABLE_4_TASKS.index(task) for task in TABLE_4_LENGTHS[length]]

        def mean_ratio(table: Mapping[str, tuple[int, ...]]) -> float:
            return sum(table[member][c] / table["softmax"][c] for c in columns) / len(columns)

        return {"time": mean_ratio(TABLE_4_TIME), "memory": mean_ratio(TABLE_4_MEMORY)}
    return None
