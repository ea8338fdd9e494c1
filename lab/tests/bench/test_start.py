"""Cold starts are measured against a bare import of torch."""

from lln_lab.bench.start import BARE, run


def test_starts_are_ratios_to_importing_torch() -> None:

    names: list[str] = []
    found = run(1, names.append, starts=(BARE, "python"))
    assert found["starts"][BARE]["ratio_to_import_torch"] == 1 and names == [BARE, "python"] * 2
    assert 0 < found["starts"]["python"]["seconds"] < found["starts"][BARE]["seconds"]
