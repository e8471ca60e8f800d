"""How often each source of a mixture will be read, before anything is spent."""

from __future__ import annotations

from protolith.config.plan import Plan
from protolith.data.mixture import Dealer
from protolith.training.datasets import Datasets

#: A source read more often than this, and than the others in the mean, is named.
_OFTEN = 2.0


def rows_by_source(datasets: Datasets, plan: Plan) -> dict[str, int]:
    """Rows that the whole run takes of each source."""
    stages = datasets.stages(plan.batch.global_rows)
    ends = [*(stage.first_row for stage in stages[1:]), plan.total_rows]
    rows = {source.name: 0 for source in datasets.sources}
    for stage, end in zip(stages, ends, strict=True):
        here = max(0, min(end, plan.total_rows) - stage.first_row)
        counts = Dealer([stage.shares.get(name, 0) for name in rows]).counts(here)
        rows = {name: rows[name] + count for name, count in zip(rows, counts, strict=True)}
    return rows


def mixture_lines(datasets: Datasets, plan: Plan) -> tuple[list[str], list[str]]:
    """(a line for each source, warnings); nothing without a mixture."""
    if not datasets.mixed:
        return [], []
    rows = rows_by_source(datasets, plan)
    tokens = {s.name: rows[s.name] * s.targets_per_row for s in datasets.sources}
    whole = sum(tokens.values()) or 1.0
    lines, warnings = [], []
    for source in datasets.sources:
        passes = rows[source.name] / source.rows.num_rows
        lines.append(
            f"source {source.name}: {100 * tokens[source.name] / whole:.3g} % of the tokens, {passes:.3g} "
            f"epochs over its {source.rows.num_targets:,}"
        )
        if passes > max(_OFTEN, 1.5 * plan.epochs):
            warnings.append(f"source {source.name} is read {passes:.3g} times over")
        if not rows[source.name]:
            warnings.append(f"source {source.name} is never read in {plan.total_rows:,} rows")
    return lines, warnings
