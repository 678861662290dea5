"""Costs in money: by the price of a profile, adding up over runs, allocations and the report."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_up import NOW, MadeUp
from project import Project, assert_clear_error
from shoal.describe import PriceTable
from shoal.kernel import Grant
from shoal.observe import AllocationView
from shoal.views.report.allocation_costs import AllocationRow
from shoal.views.report.costs import Holding, divide
from shoal.views.report.gather import gather_report, report_document
from shoal.views.report.page import report_page
from shoal.views.report.prices import format_amounts, payments, total, unpriced_notes
from shoal.views.report.text import report_csv, report_markdown

EUR = PriceTable(gpu=1.5, cpu=0.02, memory_gb=0.01, currency="EUR")


def row(gpus: int, cpus: int, grant: Grant, holdings: list[Holding], cluster: str = "a") -> AllocationRow:
    view = AllocationView("k", "1", 0, cluster, "pack", ("a/0", "a/1"), grant, 0.0, 3600.0, "job")
    of_cpus = [one._replace(amount=one.amount * 4) for one in holdings]
    divided = [divide(0, 3600, amount, None, held, view.runs) for amount, held in ((gpus, holdings), (cpus, of_cpus))]
    return AllocationRow(view, [], *divided)


@given(
    st.lists(
        st.builds(
            Holding,
            run=st.sampled_from(["a/0", "a/1", "b/0"]),
            attempt=st.integers(1, 3),
            begin=st.floats(0, 1800),
            end=st.floats(1800, 3600),
            amount=st.sampled_from([0.25, 1.0, 2.0]),
        ),
        max_size=8,
    ),
    st.sampled_from([0, 2, 8]),
)
def test_what_runs_pay_is_the_price_of_the_allocation(holdings: list[Holding], gpus: int) -> None:
    one = row(gpus, 16, Grant(gpus=gpus, cpus=16, memory_mb=64 * 1024), holdings)
    paid = payments([one], {"a": EUR})
    assert total(paid)["EUR"] == pytest.approx(gpus * 1.5 + 16 * 0.02 + 64 * 0.01)
    runs = {payment.run for payment in paid}
    assert sum(total(paid, {run})["EUR"] for run in runs) == pytest.approx(total(paid)["EUR"])


def test_billing_units_of_slurm_have_a_price_too() -> None:
    held = [Holding("a/0", 1, 0, 1800, 1.0), Holding("a/1", 1, 0, 3600, 1.0)]
    price = {"a": PriceTable(billing=0.5, currency="credits")}
    known = row(2, 8, Grant(gpus=2, cpus=8, billing=12.0), held)
    assert total(payments([known], price)) == {"credits": pytest.approx(6.0)}
    unknown = row(2, 8, Grant(gpus=2, cpus=8), held)
    assert total(payments([unknown], price)) == {"credits": 0.0}
    assert unpriced_notes([unknown], price) == ["cost without 1 job: Slurm did not tell its billing units"]


def test_currencies_are_not_added_and_jobs_without_a_price_are_named() -> None:
    held = [Holding("a/0", 1, 0, 3600, 1.0)]
    rows = [row(1, 1, Grant(gpus=1, cpus=1, memory_mb=0), held, name) for name in ("a", "b", "c")]
    price = {"a": EUR, "b": PriceTable(gpu=2.0, currency="USD")}
    assert format_amounts(total(payments(rows, price))) == "1.52 EUR + 2.00 USD"
    assert unpriced_notes(rows, price) == ["cost without 1 job on profiles without a price"]
    assert unpriced_notes(rows, {}) == [] == payments(rows, {})


def test_report_json_csv_page_and_markdown_have_the_same_cost(tmp_path: Path) -> None:
    made = MadeUp(tmp_path / "project")
    for seed in range(3):
        made.run(f"001_a/000_train_{seed}", "completed", lasted=1800, gpus=2)
    made.run("001_a/000_train_3", "failed", lasted=600, gpus=2)
    plain = gather_report(made.home, [], clock=lambda: NOW)
    assert report_document(plain)["cost"] == {} and "cost" not in report_page(plain)
    names = {one.view.cluster for one in plain.allocations}
    price = PriceTable(gpu=1.5, cpu=0.1, currency="EUR")
    report = gather_report(made.home, [], clock=lambda: NOW, price_of=dict.fromkeys(names, price))
    document = report_document(report)
    amount = document["cost"]["EUR"]
    assert amount == pytest.approx(report.gpu.allocated * 1.5 + report.cpu.allocated * 0.1, abs=1e-5)
    assert sum(one["cost"]["EUR"] for one in document["runs"]) == pytest.approx(amount, abs=1e-5)
    assert sum(one["cost"]["EUR"] for one in document["allocations"]) == pytest.approx(amount, abs=1e-5)
    rows = list(csv.DictReader(io.StringIO(report_csv(report))))
    assert sum(float(one["cost"]) for one in rows) == pytest.approx(amount, abs=1e-5)
    assert {one["currency"] for one in rows} == {"EUR"}
    words = f"{amount:.2f} EUR"
    assert f"cost {words}" in report_page(report) and f"| cost | {words} |" in report_markdown(report)
    part = gather_report(made.home, ["001_a/000_train_3"], clock=lambda: NOW, price_of=dict.fromkeys(names, price))
    assert part.cost["EUR"] == pytest.approx(document["runs"][3]["cost"]["EUR"], abs=1e-5)


@pytest.mark.slow
def test_the_price_is_read_from_the_profile_and_bad_ones_are_refused_with_their_line(tmp_path: Path) -> None:
    project = Project(tmp_path)
    script = project.script("001_a/000_train_0.sh", "train")
    project.shoal("submit", script, "--on", "local")
    text = (project.root / "shoal.toml").read_text()
    project.write("shoal.toml", f'{text}\n[clusters.local]\nprice = {{ cpu = 3600, currency = "EUR" }}\n')
    shown = project.shoal("report", "--json").json
    assert shown["cost"]["EUR"] == pytest.approx(3600 * shown["cpu_hours"]["allocated"], rel=1e-3)
    assert " EUR\n" in project.shoal("report").out
    assert "price.cpu" in project.shoal("clusters", "show", "local").out
    line = len(text.splitlines()) + 3
    for bad, said in (
        ('price = { gpu = -1, currency = "EUR" }', "expected a price per hour greater than 0"),
        ('price = { gpu = nan, currency = "EUR" }', "expected a price per hour greater than 0"),
        ('price = { gpu = "cheap", currency = "EUR" }', "expected a price per hour"),
        ("price = { gpu = 1.0 }", "currency is missing"),
        ('price = { currency = "EUR" }', "gpu, cpu, memory_gb or billing is missing"),
        ('price = { gpu = 1, currency = "a b" }', "a currency of up to 12 letters"),
        ('price = { gpu = 1, billing = 1, currency = "EUR" }', "billing units count GPUs"),
        ('price = { gpus = 1, currency = "EUR" }', "unknown key"),
    ):
        project.write("shoal.toml", f"{text}\n[clusters.local]\n{bad}\n")
        refused = project.shoal("report", code=2)
        assert_clear_error(refused, 2, said, f"shoal.toml:{line}")
