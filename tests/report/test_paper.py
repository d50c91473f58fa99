"""The paper's figures are those that it prints, and its rows meet our runs by their settings."""

import pytest
from result_sets import FakeRow, ledger_of

from lgq.experiments import EXPERIMENTS, SCALES
from lgq.report.ledger import Ledger
from lgq.report.paper import COMPARISON, NORM_BIAS, REGULARIZERS, SWEEP, TABLES, TEMPERATURE
from lgq.report.printed import PaperTable
from lgq.report.tables import build_table

PRINTED = {
    "tab:k16k": """
        20.572 0.5788 0.3032 0.2635 20.15 89.83 1921
        21.124 0.6013 0.2858 0.2450 18.82 100.00 16046
        21.475 0.6014 0.2705 0.2322 17.38 100.00 13651
        21.339 0.6145 0.2661 0.2373 16.21 99.99 15101
        20.930 0.5990 0.2778 0.2512 16.05 100.00 3981
        21.791 0.6289 0.2438 0.2225 12.32 100.00 16011
    """,
    "tab:lgq_sweep": """
        21.353 0.6080 0.2751 0.2358 16.91 100.00 3997
        21.494 0.6167 0.2610 0.2312 14.59 100.00 7893
        21.791 0.6289 0.2438 0.2225 12.32 100.00 16011
        21.932 0.6386 0.2371 0.2180 11.90 100.00 31826
        22.183 0.6491 0.2307 0.2123 10.72 100.00 63077
    """,
    "tab:ibq-kscale": """
        21.190 0.5999 0.2852 0.2437 20.68 99.95 4094
        21.409 0.6065 0.2705 0.2343 16.14 100.00 4096
        21.492 0.6162 0.2614 0.2351 16.63 99.56 16312
        21.738 0.6260 0.2436 0.2230 12.89 100.00 16384
        21.637 0.6158 0.2593 0.2279 16.10 55.07 36088
        22.093 0.6460 0.2304 0.2145 10.82 96.84 63465
    """,
    "tab:geometry": """
        100.0 0.997 1.9 13.1 8.08
        100.0 0.991 2.6 12.9 8.01
        100.0 0.977 3.7 12.2 7.94
        100.0 0.854 28.9 6.2 6.34
        79.9 0.771 43.4 4.0 5.20
    """,
    "tab:maskgit_gen": """
        12.32 57.69 0.26 14.80
        16.21 59.47 0.09 15.03
        16.05 69.38 13.26
        17.38 70.16 0.24 13.60
        20.15 92.99 10.63
    """,
    "tab:logit": """
        12.26 100.00 16384
        13.62 79.86 13084
    """,
    "tab:normbias": """
        3300 0.823 1.022 5.273 5.909 0.996
        3300 0.648 0.805 5.232 5.859 0.997
        3300 0.511 0.634 5.198 5.848 0.997
    """,
    "tab:abl_reg": """
        20.835 0.5833 0.3880 53.40 47.66
        20.679 0.5626 0.3917 56.47 38.35
        17.583 0.4369 0.5601 204.55 0.12
        17.695 0.4390 0.5453 174.19 0.07
        20.796 0.5762 0.3718 50.48 21.61
        20.586 0.5783 0.3788 49.74 40.30
        20.304 0.5442 0.4224 75.59 5.32
        20.947 0.5772 0.3636 51.29 48.85
        20.787 0.5782 0.3796 52.08 68.24
    """,
    "tab:abl_tau": """
        20.835 0.5833 0.3880 53.40 47.66
        20.446 0.5548 0.4011 62.95 8.37
        20.766 0.5807 0.3412 36.00 77.18
        20.589 0.5622 0.3887 53.67 47.27
        20.558 0.5804 0.3860 52.91 48.55
        20.680 0.5850 0.3863 54.06 50.56
        20.638 0.5718 0.3820 52.78 52.86
        19.378 0.4993 0.4852 113.80 4.33
    """,
    "tab:quantizer_cost": """
        77093 0.42 1.5
        71933 0.45 2.3
        13123 2.44 856 2.0
        3720 8.60 3196 7.2
        694 46.09 4700 38.5
        176 182.19 18548 152
        -
        8925 3.59 854 3.0
        2627 12.18 3165 10.2
        679 47.10 12405 39.4
        168 190.33 49369 159
    """,
}
"""The rows of each table as the paper's source has them, numbers alone; settings of a row are left out."""
FROM_THE_TEXT = 1
"""Rows of tab:normbias that the paper gives in its text."""


def numbers(table: PaperTable) -> list[list[float]]:
    """Of each row, each with its deviation behind it."""
    found = []
    for row in table.rows:
        line: list[float] = []
        for column, value in zip(table.columns, row.values, strict=True):
            line += [value] if isinstance(value, int | float) else []
            line += [row.spread[column.metric]] if column.metric in row.spread else []
        found.append(line)
    return found


@pytest.mark.parametrize(
    "table", [table for table in TABLES if table.label in PRINTED], ids=lambda t: t.label
)
def test_every_number_of_a_table_is_the_one_that_the_paper_prints(table):
    printed = [line.split() for line in PRINTED[table.label].strip().splitlines()]
    expected = [[float(word) for word in words if word != "-"] for words in printed]
    found = numbers(table)[: -FROM_THE_TEXT if table is NORM_BIAS else None]
    assert found == expected


def test_every_table_with_numbers_is_there():
    assert {table.label for table in TABLES if table.label.startswith("tab:")} == set(PRINTED)
    assert all(table.experiment in EXPERIMENTS for table in TABLES)


def as_planned(experiment: str) -> Ledger:
    """The runs that an experiment asks for at the paper's scale."""
    rows = [
        FakeRow(row.label, row.task.settings(), [{"psnr": 1.0}], group=row.group, kind=row.task.kind)
        for row in EXPERIMENTS[experiment].rows(SCALES["imagenet256"]())
    ]
    return ledger_of({experiment: rows})


@pytest.mark.parametrize("table", [COMPARISON, SWEEP, REGULARIZERS, TEMPERATURE], ids=lambda t: t.label)
def test_every_row_of_the_paper_is_a_run_that_its_experiment_asks_for(table):
    shown = build_table(as_planned(table.experiment), table)
    names = {row.name for row in table.rows}
    assert all(row.ours for row in shown.rows if row.name in names)
    ours_alone = {row.name for row in shown.rows} - names
    assert ours_alone == ({"VQ"} if table is COMPARISON else set())


def test_each_run_stands_in_one_row():
    shown = build_table(as_planned("temperature"), TEMPERATURE)
    runs = [source.run for row in shown.rows for cell in row.ours for source in cell.sources]
    assert len(runs) == len(set(runs)) == len(TEMPERATURE.rows)


def test_a_paper_figure_is_written_as_it_is_printed():
    row = next(row for row in build_table(ledger_of({}), COMPARISON).rows if row.name == "LGQ")
    assert row.paper == ("21.791", "0.6289", "0.2438", "0.2225", "12.32", "100.00", "16,011")
    assert row.ours == ()
